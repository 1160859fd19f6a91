"""What every store must hold to, written once so that two stores cannot drift apart.

Rule 1: pure; a store looks the facts up, asks here, and writes what it is told, in one transaction.
Rule 2: a commit that could never be right (empty, ends twice, holds a list) is a bug: `ValueError`.
A move that the lifecycle table refuses is `TaskConflict`; a lost ownership is `Fenced`.
Rule 3: only a claim makes a task RUNNING. Whatever leaves RUNNING gives the lease back; a wait or a clean
release also sets attempts to 0 (contract 7.5), an end or a takeover does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from fencepost.core.entries import (
    CHAIN_START,
    ApprovalAsked,
    Body,
    DefinitionAccepted,
    EntryBody,
    Opened,
    Replied,
    Stopped,
    decode_body,
    link,
)
from fencepost.core.errors import ApprovalExpired, Fenced, OperationTaken, StoreFailed, TaskConflict
from fencepost.core.lifecycle import TERMINAL, StopReason, TaskState, allows, state_after
from fencepost.ports import Change, Commit, NewTask, TaskRow

# Fields that must be tuples: a frozen struct with a list in it can still be changed (contract 2.2).
SEQUENCES: dict[type[Body], tuple[str, ...]] = {
    Opened: ("tools", "labels"),
    Replied: ("calls", "opaque"),
    ApprovalAsked: ("asks",),
    DefinitionAccepted: ("tools",),
}
# A key in one of these is not free: the effect happened, may have, or is happening (contract 8.2).
HOLDING = frozenset({"started", "succeeded", "unknown"})
SETTLEMENTS = frozenset({"succeeded", "failed", "unknown"})

_RUNNING = TaskState.RUNNING


def check_opened(new: NewTask) -> Opened:
    """Entry 1 of a new task, or ValueError when it is anything else."""
    if type(new.opened) is not Opened:
        raise ValueError(f"a task begins with Opened, not {type(new.opened).__name__}")
    if not new.tenant or not new.id or not new.commit_id:
        raise ValueError("a new task needs a tenant, an id and a commit id; give all three")
    _check_tuples(new.opened, SEQUENCES[Opened])
    return new.opened


def check_bodies(bodies: Sequence[EntryBody], to: TaskState) -> Stopped | None:
    """The Stopped that ends these bodies, if any; ValueError unless it is the last and leads to `to`."""
    if not bodies:
        raise ValueError("a commit without entries would pass unfenced; give it at least one body")
    stopped: Stopped | None = None
    for body in bodies:
        kind = type(body)
        if stopped is not None:
            raise ValueError(f"Stopped is the last entry of a task; {kind.__name__} may not follow it")
        if kind is Stopped:
            stopped = body  # type: ignore[assignment]
        elif kind in SEQUENCES:
            if kind is Opened:
                raise ValueError("Opened is entry 1 and only entry 1; open another task instead")
            _check_tuples(body, SEQUENCES[kind])
    if to is _RUNNING and stopped is None:
        return None
    return _check_end(stopped, to)


def check_change(change: Change, row: TaskRow) -> Stopped | None:
    """The Stopped that ends a change, if any; raises as a commit does, except that it may have no bodies."""
    check_move(row.state, change.to, row.id)
    if not change.bodies:
        return _check_end(None, change.to)
    return check_bodies(change.bodies, change.to)


def accepted(bodies: Iterable[EntryBody]) -> str | None:
    """The definition that is the task's from here on, if one was accepted: claims go by it (contract 2.6)."""
    found = None
    for body in bodies:
        if isinstance(body, DefinitionAccepted):
            found = body.definition
    return found


def is_nothing(change: Change | None, row: TaskRow) -> bool:
    """Whether an act found nothing to do: no bodies and no new state."""
    return change is None or (not change.bodies and change.to is row.state)


def check_move(before: TaskState, after: TaskState, task: str) -> None:
    """Raise TaskConflict unless a commit may take a task from one state to the other."""
    if not allows(before, after):
        raise TaskConflict(f"task {task} is {before} and cannot become {after}; read it again")
    if after is _RUNNING and before is not _RUNNING:
        raise TaskConflict(f"task {task} is {before}; only a claim makes a task {after}")


def fenced(commit: Commit, *, state: TaskState | None, epoch: int = 0, seq: int = 0) -> Fenced:
    """Why a commit changes nothing, with both sides named; `state` None means that there is no such task."""
    if state is None:
        return Fenced(f"task {commit.task} is not in this store; stop this run")
    wanted = "|".join(commit.states)
    return Fenced(
        f"task {commit.task} is at epoch {epoch}, seq {seq}, {state}; this commit was made for epoch"
        f" {commit.epoch}, seq {commit.seq}, {wanted}: it was cancelled or taken over, stop this run"
    )


def not_ours(task: str, epoch: int) -> Fenced:
    """Why a release changes nothing."""
    return Fenced(f"task {task} is no longer run under epoch {epoch}; stop this run")


def check_same_task(new: NewTask, commit_id: str) -> None:
    """Raise TaskConflict unless the task that already has this id was opened by this very commit."""
    if commit_id != new.commit_id:
        raise TaskConflict(f"task {new.id} exists already, opened by another request; choose another id")


def was_pruned(new: NewTask) -> TaskConflict:
    """Why the id of a pruned task opens no other one: whoever asks again must not run it twice."""
    return TaskConflict(f"task {new.id} is over and was pruned; choose another id")


def check_valid(commit: Commit, at: float) -> None:
    """Raise ApprovalExpired when what allowed a start is over by the store's clock (contract 11.1)."""
    if commit.valid_until is not None and at >= commit.valid_until:
        raise ApprovalExpired(
            f"task {commit.task}: the approval ran out before the start was written; ask again"
        )


def check_claim(task: str | None, *, take_over: bool, holder: str | None) -> None:
    """Raise ValueError for a take-over of nothing in particular: it would fence whoever happens to run."""
    if take_over and task is None:
        raise ValueError("take_over needs the task to take over; name it")
    if holder is not None and not take_over:
        raise ValueError("holder says from whom a task is taken over; give take_over with it")


def takes_over(worker: str, *, take_over: bool, holder: str | None) -> bool:
    """Whether a claim may take a live lease from this worker."""
    return take_over and (holder is None or worker == holder)


class Move(Struct, frozen=True, gc=False):
    """What a change of state does to the row beside the new state; `attempts` None leaves them as they are.

    A task that stays RUNNING is not moved: it keeps its lease, worker and attempts.
    """

    state: TaskState
    attempts: int | None
    waiting_for: str
    expires_at: float | None
    reason: StopReason | None


def move(to: TaskState, *, waiting_for: str, expires_at: float | None, stopped: Stopped | None) -> Move:
    """The row's part of a commit that leaves RUNNING, or that never was in it."""
    waiting = to is TaskState.WAITING_APPROVAL
    return Move(
        state=to,
        attempts=None if to in TERMINAL else 0,
        waiting_for=waiting_for if waiting else "",
        expires_at=expires_at if waiting else None,
        reason=None if stopped is None else stopped.reason,
    )


def claimable(
    state: TaskState, *, not_before: float | None, lease_until: float | None, now: float, take_over: bool
) -> bool:
    """Whether a worker may take a task in this condition; a task that waits for people never."""
    match state:
        case TaskState.PENDING:
            return True
        case TaskState.READY_TO_RESUME:
            return not_before is None or not_before <= now
        case TaskState.RUNNING:
            return take_over or (lease_until is not None and lease_until <= now)
        case _:
            return False


def act_id(epoch: int, seq: int) -> str:
    """The commit id of an intervention: unique in its task, and equal in every store."""
    return f"act-{epoch}-{seq}"


class Operation(Struct, frozen=True, gc=False):
    """Who holds an operation key of a tenant and how it went: "started", or one of SETTLEMENTS."""

    status: str
    content: str
    task: str
    step: int
    position: int


def claim_operation(held: Operation | None, key: str, *, task: str, step: int, position: int) -> Operation:
    """The key as held by this call, or OperationTaken with how the other call went (contract 8.2)."""
    ours = held is not None and (held.task, held.step, held.position) == (task, step, position)
    if held is not None and not ours and held.status in HOLDING:
        raise OperationTaken(
            f"operation {key!r} was already {held.status} by task {held.task}, call"
            f" {held.step}.{held.position}; it is not run again",
            status=held.status,
            content=held.content,
        )
    return Operation("started", "", task, step, position)


def settle_operation(held: Operation | None, key: str, *, task: str, status: str, content: str) -> Operation:
    """The key with its outcome; ValueError unless this task holds it."""
    if status not in SETTLEMENTS:
        raise ValueError(f"operation {key!r} cannot end as {status!r}; use one of {sorted(SETTLEMENTS)}")
    if held is None or held.task != task:
        raise ValueError(f"operation {key!r} is not held by task {task}; only its holder settles it")
    return Operation(status, content, task, held.step, held.position)


class StoredEntry(Struct, frozen=True, gc=False):
    """An entry as a store keeps it, before anybody decodes it."""

    seq: int
    epoch: int
    kind: str
    version: int
    data: bytes


def first_difference(row: TaskRow, stored: Iterable[StoredEntry], late: int) -> str | None:
    """The first place where a row is not what its journal says, as a sentence; None when there is none.

    Recomputes seq, epochs, the hash chain, what Opened fixed, and the end. Raises StoreNewer for a journal
    that this program cannot read.
    """
    head, seq, epoch, last = CHAIN_START, 0, 0, None
    definition = row.definition
    for entry in stored:
        seq += 1
        if entry.seq != seq:
            return f"entry {seq} is missing: the next one is {entry.seq}"
        if isinstance(last, Stopped):
            return f"entry {seq} ({entry.kind}) follows Stopped"
        if entry.epoch < epoch:
            return f"entry {seq} has epoch {entry.epoch}, below {epoch} of the entry before it"
        epoch, head = entry.epoch, link(head, entry.kind, entry.data)
        try:
            last = decode_body(entry.kind, entry.version, entry.data)
        except StoreFailed as why:
            if why.code == "store_newer":
                raise
            return f"entry {seq}: {why}"
        if isinstance(last, Opened) != (seq == 1):
            return f"entry {seq} is {entry.kind}: Opened is entry 1 and only entry 1"
        if isinstance(last, Opened):
            opened = (last.agent, last.requester, last.prompt)
            if opened != (row.agent, row.requester, row.prompt):
                return "agent, requester or prompt of the row are not those of entry 1"
        if isinstance(last, Opened | DefinitionAccepted):
            definition = last.definition
    if definition != row.definition:
        return f"the row has definition {row.definition}, the journal {definition}"
    return _row_difference(row, head=head, seq=seq, epoch=epoch, last=last, late=late)


def _row_difference(
    row: TaskRow, *, head: str, seq: int, epoch: int, last: EntryBody | None, late: int
) -> str | None:
    if row.seq != seq:
        return f"the row is at seq {row.seq}, the journal ends at {seq}"
    if row.chain != head:
        return f"the chain over {seq} entries is {head}, the row says {row.chain}: an entry was changed"
    if row.epoch < epoch:
        return f"the row is at epoch {row.epoch}, below {epoch} of the last entry"
    reason = last.reason if isinstance(last, Stopped) else None
    if row.reason is not reason or (row.state in TERMINAL) != (reason is not None):
        return f"the row is {row.state} ({row.reason}), the journal ends with {reason}"
    if reason is not None and row.state is not state_after(reason):
        return f"the row is {row.state}, but {reason} leads to {state_after(reason)}"
    if row.late != late:
        return f"the row counts {row.late} late records, there are {late}"
    return None


def _check_end(stopped: Stopped | None, to: TaskState) -> Stopped | None:
    if stopped is None:
        if to in TERMINAL:
            raise ValueError(f"a task becomes {to} only by an entry Stopped; add it as the last one")
        return None
    if state_after(stopped.reason) is not to:
        raise ValueError(f"Stopped({stopped.reason}) leads to {state_after(stopped.reason)}, not to {to}")
    return stopped


def _check_tuples(body: Body, fields: tuple[str, ...]) -> None:
    for name in fields:
        if type(getattr(body, name)) is not tuple:
            raise ValueError(f"{type(body).__name__}.{name} must be a tuple: an entry can never be changed")
