"""The functions that the search drives, in one place, so that a bug is planted by giving another function.

Rule 1: the defaults are the functions of the product: the core, the rules of the stores, the acts of people.
Rule 2: what is asynchronous around them (the loop, a store) is mirrored step by step in world.py; what is
mirrored and not driven has a name here, so that a bug can be planted in it too.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from fencepost.core import closing, decide, state
from fencepost.core.decide import Move
from fencepost.core.entries import CallEnded, Entry, EntryBody
from fencepost.core.errors import DecisionRefused
from fencepost.core.lifecycle import StopReason, TaskState
from fencepost.core.messages import ModelProfile
from fencepost.core.state import State
from fencepost.ports import Act, AuditRecord, Change, Commit, Store, TaskRow, Totals
from fencepost.run.running import stop_change
from fencepost.service import tasks
from fencepost.stores import rules


class Row(NamedTuple):
    """The part of a task's row that a fence looks at."""

    state: TaskState
    epoch: int
    seq: int
    attempts: int


class Written(NamedTuple):
    """The row after a commit that was written."""

    row: Row


class Passed(NamedTuple):
    """The check was passed and nothing is written yet: only a broken fence says this."""


class Refused(NamedTuple):
    """The fence held; nothing was written."""


def append(row: Row, commit: Commit, passed: bool) -> Written | Passed | Refused:
    """A run's commit, checked and written in one step (contract 7.3)."""
    if (row.epoch, row.seq) != (commit.epoch, commit.seq) or row.state not in commit.states:
        return Refused()
    return Written(written(row, commit))


def written(row: Row, commit: Commit) -> Row:
    """The row after a commit, by the rules that every store shares."""
    stopped = rules.check_bodies(commit.bodies, commit.to)
    seq = commit.seq + len(commit.bodies)
    if commit.to is row.state is TaskState.RUNNING:
        return row._replace(seq=seq)
    rules.check_move(row.state, commit.to, commit.task)
    move = rules.move(commit.to, waiting_for=commit.waiting_for, expires_at=None, stopped=stopped)
    attempts = row.attempts if move.attempts is None else move.attempts
    return Row(move.state, row.epoch, seq, attempts)


def intervene(row: Row, change: Change, held: int, passed: bool) -> Written | Passed | Refused:
    """What a person did, written in the transaction that read the journal up to seq `held`."""
    if row.seq != held:
        return Refused()
    return Written(changed(row, change))


def changed(row: Row, change: Change) -> Row:
    """The row after an intervention, by the rules that every store shares."""
    stopped = rules.check_change(change, task_row(row))
    epoch = row.epoch + 1 if change.bump else row.epoch
    move = rules.move(change.to, waiting_for=change.waiting_for, expires_at=None, stopped=stopped)
    attempts = row.attempts if move.attempts is None else move.attempts
    return Row(move.state, epoch, row.seq + len(change.bodies), attempts)


def intent(commits: Callable[[], Any], performs: Callable[[], Any]) -> Any:
    """What comes first when a call is about to run: the commit of its CallStarted (contract 8.1)."""
    return commits()


def late(bodies: tuple[CallEnded, ...]) -> tuple[EntryBody, ...]:
    """What becomes of results that came after the fence: nothing in the journal (contract 1, late result)."""
    return ()


def cancel(entries: tuple[Entry, ...], row: Row, now: float) -> Change | None:
    """What a cancel of the task writes."""
    return _caught(lambda store: tasks.cancel(store, "task"), entries, row, now)


def approve(entries: tuple[Entry, ...], row: Row, now: float, *, call: str, yes: bool) -> Change | None:
    """What an approval or a rejection of a call writes; None when it is refused."""
    return _caught(lambda store: tasks.decide_approval(store, "task", call, approve=yes), entries, row, now)


def resolve(entries: tuple[Entry, ...], row: Row, now: float, *, call: str, verdict: str) -> Change | None:
    """What a person's word about a lost write writes; None when it is refused."""
    return _caught(lambda store: tasks.resolve_outcome(store, "task", call, verdict), entries, row, now)


def expire(entries: tuple[Entry, ...], row: Row, now: float) -> Change | None:
    """What the passing of time writes."""
    return _caught(tasks.expire, entries, row, now)


def too_many_attempts(at: State) -> Change:
    """What a worker writes that claimed a task once too often."""
    return stop_change(at, StopReason.TOO_MANY_ATTEMPTS, by="runtime")


@dataclass(frozen=True)
class Machine:
    """Everything the world is moved by."""

    apply: Callable[[State, EntryBody], State] = state.apply
    decide: Callable[[State, float], Move] = decide.decide
    closing: Callable[..., tuple[EntryBody, ...]] = closing.closing
    resumed: Callable[[State, ModelProfile], State] = state.resumed
    lost: Callable[..., State] = state.lost
    append: Callable[[Row, Commit, bool], Written | Passed | Refused] = append
    intervene: Callable[[Row, Change, int, bool], Written | Passed | Refused] = intervene
    intent: Callable[[Callable[[], Any], Callable[[], Any]], Any] = intent
    late: Callable[[tuple[CallEnded, ...]], tuple[EntryBody, ...]] = late
    cancel: Callable[[tuple[Entry, ...], Row, float], Change | None] = cancel
    approve: Callable[..., Change | None] = approve
    resolve: Callable[..., Change | None] = resolve
    expire: Callable[[tuple[Entry, ...], Row, float], Change | None] = expire
    too_many_attempts: Callable[[State], Change] = too_many_attempts


def task_row(row: Row) -> TaskRow:
    """A row as the port describes it, where only the fenced part matters."""
    return TaskRow(
        tenant="local", id="task", agent="agent", requester="local/user", definition="definition",
        state=row.state, seq=row.seq, epoch=row.epoch, attempts=row.attempts, created_at=0.0, updated_at=0.0,
    )  # fmt: skip


class _OneTask:
    """As much of a store as an act of a person needs: it shows the task and keeps what would be written."""

    def __init__(self, entries: tuple[Entry, ...], row: Row, now: float) -> None:
        self.entries, self.at, self.now = entries, task_row(row), now
        self.change: Change | None = None

    async def intervene(self, tenant: str, task: str, by: str, act: Act, /) -> tuple[TaskRow, bool]:
        self.change = act(self.at, self.entries, self.now)
        return self.at, False

    async def expired(self, tenant: str | None, /, *, limit: int = 100) -> tuple[TaskRow, ...]:
        return (self.at,)

    async def audit(self, record: AuditRecord, /) -> None:
        pass


def _caught(
    act: Callable[[Store], Coroutine[Any, Any, Any]], entries: tuple[Entry, ...], row: Row, now: float
) -> Change | None:
    """The change a command of the service makes; nothing in it waits, so it ends at its first step."""
    store = _OneTask(entries, row, now)
    try:
        act(cast("Store", store)).send(None)
    except StopIteration:
        change = store.change
        return None if change is None or rules.is_nothing(change, store.at) else change
    except DecisionRefused:
        return None
    raise AssertionError("an act of a person waited for something")


def totals_of(at: State) -> Totals:
    """The sums that a run commits beside its entries."""
    return Totals(at.tokens, at.cost_nano, at.steps, at.calls)
