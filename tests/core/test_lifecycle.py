"""The states of a task and the transitions between them: one table, written out again by hand."""

from __future__ import annotations

import pytest

from fencepost.core.lifecycle import OPEN, TERMINAL, TRANSITIONS, StopReason, TaskState, allows, state_after

ENDS = "SUCCEEDED FAILED CANCELLED"
TABLE = {
    "PENDING": "PENDING RUNNING FAILED CANCELLED",
    "RUNNING": f"RUNNING WAITING_APPROVAL READY_TO_RESUME {ENDS}",
    "WAITING_APPROVAL": "WAITING_APPROVAL READY_TO_RESUME FAILED CANCELLED",
    "READY_TO_RESUME": "READY_TO_RESUME RUNNING FAILED CANCELLED",
    "SUCCEEDED": "",
    "FAILED": "",
    "CANCELLED": "",
}


@pytest.mark.parametrize("before", TaskState)
@pytest.mark.parametrize("after", TaskState)
def test_a_transition_is_allowed_exactly_where_the_table_says_so(before: TaskState, after: TaskState) -> None:
    assert allows(before, after) is (after.value in TABLE[before.value].split())


def test_a_terminal_state_has_no_transition_out_and_every_other_one_can_be_cancelled() -> None:
    assert {state for state in TaskState if not TRANSITIONS[state]} == TERMINAL
    assert all(allows(state, TaskState.CANCELLED) for state in OPEN)
    assert set(TaskState) == OPEN | TERMINAL


def test_success_needs_a_run() -> None:
    assert [state for state in TaskState if allows(state, TaskState.SUCCEEDED)] == [TaskState.RUNNING]


@pytest.mark.parametrize("reason", StopReason)
def test_a_reason_leads_to_the_state_it_names(reason: StopReason) -> None:
    named = {"COMPLETED": TaskState.SUCCEEDED, "CANCELLED": TaskState.CANCELLED}
    assert state_after(reason) is named.get(reason.value, TaskState.FAILED)


def test_names_are_values_so_that_they_can_be_stored_and_queried() -> None:
    assert all(member.name == member.value for kind in (TaskState, StopReason) for member in kind)
    assert len(StopReason) == 26
