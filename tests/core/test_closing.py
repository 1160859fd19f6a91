"""The one routine that ends a task: what it says of each call, by what is known of it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fencepost.core.closing import NOT_EXECUTED, closing, lost_operations
from fencepost.core.entries import Answer, ApprovalDecided, CallEnded, CallStatus, EntryBody, Stopped
from fencepost.core.lifecycle import StopReason
from fencepost.core.state import State, fold, lost
from tests.core.tables import (
    asked,
    asking,
    asks,
    call,
    decided,
    ended,
    folded,
    opened,
    reclaimed,
    replied,
    resolved,
    started,
)

CANCELLED, TIMEOUT = StopReason.CANCELLED, StopReason.TASK_TIMEOUT


def step(*bodies: EntryBody, name: str = "write", ask: bool = False) -> State:
    """A task with one call of a tool, and what came after the reply."""
    made = asking(name, "i") if ask else call(name, "i")
    return folded(opened(), asked(), replied(1, made), *bodies)


def said(state: State, reason: StopReason) -> list[tuple[str, str]]:
    """What the closing says of each open call: status and words."""
    return [(b.status.value, b.content) for b in closing(state, reason) if isinstance(b, CallEnded)]


NOT_STARTED = ("cancelled: cancelled", "not_executed: not executed: the task ran out of time")
REPEATABLE = ("cancelled: cancelled", "timeout: did not end before the task stopped: TASK_TIMEOUT")
UNKNOWN = ("unknown: cancelled, outcome unknown", "unknown: outcome unknown, do not repeat")
QUESTION = asks(1, about="outcome")
# A call, and how it is closed by a cancel and by the deadline.
ROWS: dict[str, tuple[State, tuple[str, str]]] = {
    "not started": (step(), NOT_STARTED),
    "a started read": (step(started(1), name="slow"), REPEATABLE),
    "a started idempotent call": (step(started(1), name="put"), REPEATABLE),
    "a started write": (step(started(1)), UNKNOWN),
    "a started call of a tool that is gone": (step(started(1), name="gone"), UNKNOWN),
    "a lost write": (lost(step(started(1)), (0,), cause="timeout"), UNKNOWN),
    "a lost write that people are asked about": (step(started(1), QUESTION), UNKNOWN),
    "a write that a person confirmed": (
        step(started(1), QUESTION, resolved(1, content="paid 7")),
        ("ok: paid 7", "ok: paid 7"),
    ),
    "a write of which a person cannot tell": (
        step(started(1), QUESTION, resolved(1, 0, "cannot_tell")),
        UNKNOWN,
    ),
    "a write that did not happen": (
        step(started(1), QUESTION, resolved(1, 0, "did_not_happen")),
        NOT_STARTED,
    ),
    "a write that waits for its approval": (step(asks(1), ask=True), NOT_STARTED),
    "an approved write": (step(asks(1), decided(1), ask=True), NOT_STARTED),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_call_is_closed_by_what_is_known_of_it(name: str) -> None:
    state, (cancelled, timed_out) = ROWS[name]
    assert [": ".join(words) for words in said(state, CANCELLED)] == [cancelled]
    assert [": ".join(words) for words in said(state, TIMEOUT)] == [timed_out]


@pytest.mark.parametrize("reason", StopReason)
def test_every_reason_has_words_for_a_call_that_was_not_executed(reason: StopReason) -> None:
    [(status, content)] = said(step(), reason)
    assert status == ("cancelled" if reason is CANCELLED else "not_executed")
    assert content == NOT_EXECUTED.get(reason, f"not executed: the task stopped with {reason}")


def test_what_has_ended_stays_as_it_ended() -> None:
    assert closing(step(started(1), ended(1)), CANCELLED) == (
        Stopped(CANCELLED, settled_tokens=0, settled_nano=0),
    )


def test_a_task_that_was_only_opened_is_closed_by_its_stop() -> None:
    assert closing(folded(opened()), CANCELLED, by="local/boss", detail="enough") == (
        Stopped(CANCELLED, "enough", settled_nano=0, by="local/boss"),
    )


def test_a_reservation_that_is_open_is_settled_by_the_stop() -> None:
    stop = closing(folded(opened(), asked()), CANCELLED)[-1]
    assert isinstance(stop, Stopped)
    assert (stop.settled_tokens, stop.settled_nano) == (asked().reserved_tokens, asked().reserved_nano)
    unknown = closing(folded(opened(), asked(nano=None)), CANCELLED)[-1]
    assert isinstance(unknown, Stopped)
    assert unknown.settled_nano is None


def test_an_open_question_is_voided_before_its_call_is_closed() -> None:
    state = step(asks(1), ask=True)
    void, result, _ = closing(state, CANCELLED)
    assert isinstance(void, ApprovalDecided)
    assert (void.decision, void.reason, void.digest) == ("void", "CANCELLED", state.open_asks[0].digest)
    assert isinstance(result, CallEnded)
    assert fold(closing(state, CANCELLED), state).open_asks == ()


def test_a_partial_answer_is_kept_in_the_stop() -> None:
    stop = closing(step(ended(1)), StopReason.TOKEN_BUDGET_EXCEEDED, answer=Answer("8"), partial=True)[-1]
    assert isinstance(stop, Stopped)
    assert (stop.answer, stop.partial) == (Answer("8"), True)


@pytest.mark.parametrize("reason", [CANCELLED, TIMEOUT, StopReason.COMPLETED])
def test_closing_leaves_nothing_open_and_its_results_in_the_order_of_the_calls(reason: StopReason) -> None:
    calls = [call("read", "a"), asking("write", "b"), call("write", "c")]
    state = folded(opened(), asked(), replied(1, *calls), asks(1, 1), started(1, 2))
    bodies = closing(state, reason)
    assert [b.position for b in bodies if isinstance(b, CallEnded)] == [0, 1, 2]
    after = fold(bodies, state)
    assert after.is_over
    assert all(c.ended is not None for c in after.open)
    assert [type(m).__name__ for m in after.messages][-3:] == ["ToolMessage"] * 3


def operation(*bodies: Any) -> State:
    """A write with an operation key that was started."""
    return folded(opened(), asked(), replied(1, call("write", "i")), started(1, operation="pay-7"), *bodies)


def test_an_operation_nobody_knows_the_outcome_of_is_unknown() -> None:
    unknown = (("pay-7", "unknown", ""),)
    assert lost_operations(operation()) == unknown
    assert lost_operations(lost(operation(), (0,), cause="crash")) == unknown
    assert lost_operations(operation(asks(1, about="outcome"))) == unknown
    assert lost_operations(operation(asks(1, about="outcome"), resolved(1, 0, "cannot_tell"))) == unknown


def test_an_operation_somebody_knows_the_outcome_of_keeps_it() -> None:
    asked_about = asks(1, about="outcome")
    assert lost_operations(operation(ended(1))) == ()
    assert lost_operations(operation(asked_about, resolved(1, 0, "happened"))) == ()
    assert lost_operations(operation(asked_about, resolved(1, 0, "did_not_happen"))) == ()
    assert lost_operations(step(started(1))) == ()
    assert lost_operations(step()) == ()


def test_a_confirmed_call_is_no_evidence_unless_its_tool_said_so() -> None:
    by_person = reclaimed(opened(), asked(), replied(1, call("pay", "i")), started(1), resolved(1))
    by_tool = replace(by_person, open=(replace(by_person.open[0], resolved=resolved(1, source="reconcile")),))
    first, second = closing(by_person, CANCELLED)[0], closing(by_tool, CANCELLED)[0]
    assert isinstance(first, CallEnded)
    assert isinstance(second, CallEnded)
    assert (first.failure, second.failure) == ("confirmed_by_person", "")
    assert first.status is second.status is CallStatus.OK
