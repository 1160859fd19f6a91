"""Bugs, each one function in the place of the right one: the search must find every one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from fencepost.core import state
from fencepost.core.decide import AskPeople, Move, StartCalls, decide
from fencepost.core.entries import CallEnded, CallStarted, Entry, EntryBody
from fencepost.core.messages import ModelProfile
from fencepost.core.state import Phase, State
from fencepost.ports import Change, Commit
from tests.core.explore import machine
from tests.core.explore.machine import Machine, Passed, Refused, Row, Written


def epoch_not_bumped_on_cancel(entries: tuple[Entry, ...], row: Row, now: float) -> Change | None:
    """Cancel without moving the epoch: the run does not learn that it lost its task."""
    change = machine.cancel(entries, row, now)
    return None if change is None else replace(change, bump=False)


def fence_of_insert_select(row: Row, commit: Commit, passed: bool) -> Written | Passed | Refused:
    """Check in one step and write in another, as `INSERT … SELECT … WHERE epoch = …` does."""
    if passed:
        return Written(row._replace(seq=row.seq + len(commit.bodies)))
    checked = machine.append(row, commit, passed)
    return Passed() if isinstance(checked, Written) else checked


def started_after_the_effect(commits: Callable[[], Any], performs: Callable[[], Any]) -> Any:
    """Run the call first and commit its CallStarted with its result."""
    return performs()


def unknown_write_run_again(at: State, seconds: float) -> Move:
    """Start a lost write again instead of asking what became of it."""
    move = decide(at, seconds)
    if isinstance(move, AskPeople) and move.about == "outcome":
        return StartCalls(move.positions)
    return move


def approval_not_consumed(at: State, body: EntryBody) -> State:
    """Leave an approved call startable when it is started: its yes still stands for the next run."""
    after = state.apply(at, body)
    if not isinstance(body, CallStarted) or at.open[body.position].decision != "approved":
        return after
    call = replace(after.open[body.position], phase=Phase.ASKED, consumed=False)
    return replace(after, open=(*after.open[: body.position], call, *after.open[body.position + 1 :]))


def finish_without_seq(row: Row, change: Change, held: int, passed: bool) -> Written | Passed | Refused:
    """Look at the journal, then write the end that fitted it then, whatever was appended in between."""
    return Written(machine.changed(row, change)) if passed else Passed()


def late_result_appended(bodies: tuple[CallEnded, ...]) -> tuple[EntryBody, ...]:
    """Append what a fenced run brings to the journal it no longer owns."""
    return bodies


def reservation_dropped_on_crash(at: State, profile: ModelProfile) -> State:
    """Forget on a claim that an earlier run had asked the model."""
    return replace(state.resumed(at, profile), asked=None)


class Planted(NamedTuple):
    """A machine with one bug, the first rule that is seen to break, and the harm that it does in the end."""

    machine: Machine
    breaks: str
    harm: str


PLANTED = {
    "epoch not bumped on cancel": Planted(Machine(cancel=epoch_not_bumped_on_cancel), "epoch", "fence"),
    "fence of INSERT … SELECT": Planted(Machine(append=fence_of_insert_select), "fenced", "over"),
    "CallStarted after the effect": Planted(
        Machine(intent=started_after_the_effect), "started first", "started first"
    ),
    "unknown write run again": Planted(Machine(decide=unknown_write_run_again), "again", "once"),
    "approval not consumed": Planted(Machine(apply=approval_not_consumed), "consent", "once"),
    "finish without seq": Planted(Machine(intervene=finish_without_seq), "settled", "one result"),
    "late result appended": Planted(Machine(late=late_result_appended), "fenced", "over"),
    "reservation dropped on crash": Planted(
        Machine(resumed=reservation_dropped_on_crash), "request", "request"
    ),
}
