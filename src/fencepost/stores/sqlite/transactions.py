"""What each write of the store does inside its transaction; the writer begins and commits.

Rule: look, ask `rules`, then write. Every function here may raise, and then nothing of it was written.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import apsw
from msgspec import Struct

from fencepost.core.entries import (
    CHAIN_START,
    ENTRY_VERSION,
    Entry,
    EntryBody,
    Opened,
    Stopped,
    decode_body,
    encode_body,
    kind_of,
    link,
)
from fencepost.core.errors import StoreCorrupt, StoreNewer, TaskNotFound
from fencepost.core.lifecycle import StopReason, TaskState
from fencepost.ports import Act, Claimed, Commit, LateRecord, Lease, NewTask, Receipt, TaskRow, Totals
from fencepost.stores import rules
from fencepost.stores.rules import Operation
from fencepost.stores.sqlite import statements as sql
from fencepost.stores.sqlite.statements import fetch

_RUNNING = TaskState.RUNNING
ALL = -1  # no limit, for SQLite


class Encoded(Struct, frozen=True, gc=False):
    """A body as it is stored; made before the transaction, so that the lock is held for less."""

    kind: str
    data: bytes


def encode(bodies: Iterable[EntryBody]) -> tuple[Encoded, ...]:
    """The bodies' kinds and exact bytes."""
    return tuple(Encoded(kind_of(body), encode_body(body)) for body in bodies)


# --- reads, also used inside transactions ---------------------------------------------------------------


def read_row(db: apsw.Connection, tenant: str, task: str) -> TaskRow:
    """The task's row, or TaskNotFound."""
    try:
        found = fetch(db, sql.ROW, (tenant, task))
    except UnicodeEncodeError:  # half a surrogate pair: no store can hold such an id
        raise not_found(task) from None
    if not found:
        raise not_found(task)
    return task_row(found[0])


def read_entries(db: apsw.Connection, tenant: str, task: str, *, after: int, limit: int) -> tuple[Entry, ...]:
    """A part of a journal; StoreNewer or StoreCorrupt names the first entry that cannot be read."""
    return tuple(map(_entry, fetch(db, sql.ENTRIES, (tenant, task, after, limit))))


def read_journal(db: apsw.Connection, row: TaskRow) -> tuple[Entry, ...]:
    """The whole journal, as its chain says it is; StoreCorrupt when an entry was changed or is missing."""
    found = fetch(db, sql.ENTRIES, (row.tenant, row.id, 0, ALL))
    entries, head = tuple(map(_entry, found)), CHAIN_START
    for values in found:
        head = link(head, values[7], values[9])
    if head != row.chain or len(entries) != row.seq:
        raise StoreCorrupt(
            f"the journal of task {row.id} is not the one that was written: its {len(entries)} entries do not"
            f" make the chain of the {row.seq} its row says; restore a backup"
        )
    return entries


def not_found(task: str) -> TaskNotFound:
    """What a tenant is told of a task that is missing or not its own."""
    return TaskNotFound(f"there is no task {task}; list the tasks to see which there are")


def task_row(values: Sequence[Any]) -> TaskRow:
    """A row of statements._ROW as the port describes it."""
    try:
        state = TaskState(values[5])
        reason = None if values[14] is None else StopReason(values[14])
    except ValueError as why:
        raise StoreCorrupt(f"the row of task {values[1]} cannot be read ({why}); restore a backup") from None
    fields = list(values)
    fields[5], fields[14] = state, reason
    return TaskRow(*fields)


def _entry(values: Sequence[Any]) -> Entry:
    seq, epoch, at, by, attempt, commit_id, seconds, kind, version, data = values
    return Entry(seq, epoch, at, by, attempt, commit_id, seconds, decode_body(kind, version, data))


# --- opening, claiming, releasing -----------------------------------------------------------------------


def open_task(db: apsw.Connection, new: NewTask, *, opened: Opened, encoded: Encoded, at: float) -> TaskRow:
    """The new task's row, or the row that this very commit had made before."""
    earlier = fetch(db, sql.COMMIT_AT, (new.tenant, new.id, 1))
    if earlier:
        rules.check_same_task(new, earlier[0][0])
        return read_row(db, new.tenant, new.id)
    if fetch(db, sql.TOMBSTONE, (new.tenant, new.id)):
        raise rules.was_pruned(new)
    chain = link(CHAIN_START, encoded.kind, encoded.data)
    facts = {
        "tenant": new.tenant, "id": new.id, "at": at, "agent": opened.agent, "requester": opened.requester,
        "parent": opened.parent, "definition": opened.definition, "chain": chain,
    }  # fmt: skip
    number = fetch(db, sql.OPEN, facts)[0][0]
    fetch(db, sql.PROMPT, (number, opened.prompt))
    entry = (number, 1, 0, at, new.by, 0, new.commit_id, 0.0, encoded.kind, ENTRY_VERSION, encoded.data)
    fetch(db, sql.ENTRY, entry)
    return read_row(db, new.tenant, new.id)


class Wanted(Struct, frozen=True):
    """What a worker is willing to claim."""

    worker: str
    lease_seconds: float | None
    definitions: Collection[str] | None
    tenant: str | None
    task: str | None
    take_over: bool
    holder: str | None


def claim(db: apsw.Connection, wanted: Wanted, *, at: float) -> Claimed | None:
    """The oldest task that may be claimed and can be read, claimed; None when there is none.

    A journal that cannot be read does not stand in the way of younger tasks; claimed by name, it says why.
    """
    found = _first_claimable(db, wanted, at)
    if found is None:
        return None
    tenant, task, entries = found
    until = None if wanted.lease_seconds is None else at + wanted.lease_seconds
    facts = {"worker": wanted.worker, "lease_until": until, "at": at, "tenant": tenant, "task": task}
    fetch(db, sql.CLAIM, facts)
    row = read_row(db, tenant, task)
    return Claimed(Lease(tenant, task, row.epoch, row.attempts, wanted.worker, until), row, entries)


def _first_claimable(
    db: apsw.Connection, wanted: Wanted, at: float
) -> tuple[str, str, tuple[Entry, ...]] | None:
    definitions = None if wanted.definitions is None else json.dumps(list(wanted.definitions))
    facts = {
        "tenant": wanted.tenant, "task": wanted.task, "definitions": definitions,
        "take_over": wanted.take_over, "now": at,
    }  # fmt: skip
    cursors = _candidates(db, wanted, facts)
    try:
        for _, _, tenant, task, state, not_before, lease_until, worker in heapq.merge(*cursors):
            if not rules.claimable(
                TaskState(state), not_before=not_before, lease_until=lease_until, now=at,
                take_over=rules.takes_over(worker, take_over=wanted.take_over, holder=wanted.holder),
            ):  # fmt: skip
                continue
            try:
                return tenant, task, read_journal(db, read_row(db, tenant, task))
            except (StoreNewer, StoreCorrupt):
                if wanted.task is not None:
                    raise
    finally:
        for cursor in cursors:
            cursor.close()  # an unfinished SELECT would make COMMIT fail
    return None


def _candidates(db: apsw.Connection, wanted: Wanted, facts: dict[str, Any]) -> list[apsw.Cursor]:
    """Queries that each give candidates oldest first: one a definition, so that other ones are not looked at."""
    if wanted.tenant is not None and wanted.task is not None:
        return [db.execute(sql.NAMED, facts)]
    definitions = set(_queued_definitions(db) if wanted.definitions is None else wanted.definitions)
    queued = [db.execute(sql.QUEUED, {**facts, "definition": definition}) for definition in definitions]
    return [*queued, db.execute(sql.LEFT_RUNNING, facts)]


def _queued_definitions(db: apsw.Connection) -> Iterator[str]:
    found = [("",)]
    while found := fetch(db, sql.NEXT_DEFINITION, found[0]):
        yield found[0][0]


def release(
    db: apsw.Connection, lease: Lease, *, seconds: float, not_before: float | None, at: float
) -> None:
    """The task is back in the queue, or Fenced."""
    fetch(db, sql.RELEASE, (not_before, seconds, at, lease.tenant, lease.task, lease.epoch))
    if db.changes() != 1:
        raise rules.not_ours(lease.task, lease.epoch)


# --- commits --------------------------------------------------------------------------------------------


def append(
    db: apsw.Connection, commit: Commit, *, encoded: tuple[Encoded, ...], stopped: Stopped | None, at: float
) -> Receipt:
    """The receipt of the commit, or Fenced; the same commit id at the expected seq is success."""
    found = fetch(db, sql.HEAD, (commit.tenant, commit.task))
    if not found:
        raise rules.fenced(commit, state=None)
    number, was, epoch, seq, chain = found[0]
    if epoch != commit.epoch or seq != commit.seq or was not in commit.states:
        return _earlier(db, commit, state=TaskState(was), epoch=epoch, seq=seq)
    rules.check_valid(commit, at)
    state, to, totals = TaskState(was), commit.to, commit.totals
    for one in encoded:
        chain = link(chain, one.kind, one.data)
    end = seq + len(encoded)
    if state is _RUNNING and to is _RUNNING:
        fetch(db, sql.ADVANCE, (
            end, chain, at, commit.seconds, totals.tokens, totals.cost_nano, totals.steps, totals.calls,
            commit.tenant, commit.task, epoch, seq,
        ))  # fmt: skip
    else:
        rules.check_move(state, to, commit.task)
        move = rules.move(to, waiting_for=commit.waiting_for, expires_at=commit.expires_at, stopped=stopped)
        _move(
            db, commit.tenant, commit.task, state=state, epoch=epoch, epoch_after=epoch, seq=seq, end=end,
            chain=chain, at=at, seconds=commit.seconds, totals=totals, move=move,
        )  # fmt: skip
    assert db.changes() == 1, "the transaction holds the lock and has just read this row"
    envelope = (epoch, at, commit.by, commit.attempt, commit.commit_id, commit.seconds)
    _write_entries(db, number, seq, envelope, encoded)
    _accept(db, commit.tenant, commit.task, commit.bodies)
    if commit.settle or commit.operations:
        _hold(db, commit.tenant, commit.task, settle=commit.settle, operations=commit.operations)
    for digest, data in commit.artifacts:
        fetch(db, sql.KEEP, (commit.tenant, digest, bytes(data)))
        fetch(db, sql.USE, (number, digest))
    return Receipt(end, at)


def intervene(
    db: apsw.Connection, tenant: str, task: str, *, by: str, act: Act, at: float
) -> tuple[TaskRow, bool]:
    """The row after the act's change, and whether there was one; what `act` raises undoes all."""
    row = read_row(db, tenant, task)
    change = act(row, read_journal(db, row), at)
    if change is None or rules.is_nothing(change, row):
        return row, False
    stopped = rules.check_change(change, row)
    encoded, chain = encode(change.bodies), row.chain
    for one in encoded:
        chain = link(chain, one.kind, one.data)
    epoch, end, totals = row.epoch + change.bump, row.seq + len(encoded), change.totals
    if change.to is _RUNNING:
        fetch(db, sql.ADVANCE, (
            end, chain, at, row.seconds, totals.tokens, totals.cost_nano, totals.steps, totals.calls,
            tenant, task, row.epoch, row.seq,
        ))  # fmt: skip
        if change.bump:
            fetch(db, sql.FENCE_OFF, (at, tenant, task, row.epoch))
    else:
        move = rules.move(
            change.to, waiting_for=change.waiting_for, expires_at=change.expires_at, stopped=stopped
        )
        _move(
            db, tenant, task, state=row.state, epoch=row.epoch, epoch_after=epoch, seq=row.seq, end=end,
            chain=chain, at=at, seconds=row.seconds, totals=totals, move=move,
        )  # fmt: skip
    assert db.changes() == 1, "the transaction holds the lock and has just read this row"
    number = fetch(db, sql.NUMBER, (tenant, task))[0][0]
    envelope = (epoch, at, by, row.attempts, rules.act_id(epoch, row.seq + 1), row.seconds)
    _write_entries(db, number, row.seq, envelope, encoded)
    _hold(db, tenant, task, settle=change.settle, operations=())
    _accept(db, tenant, task, change.bodies)
    return read_row(db, tenant, task), True


def record_late(db: apsw.Connection, record: LateRecord, *, at: float) -> None:
    """The record is kept and counted, or TaskNotFound."""
    found = fetch(db, sql.NUMBER, (record.tenant, record.task))
    if not found:
        raise not_found(record.task)
    fetch(db, sql.RECORD_LATE, (
        found[0][0], record.step, record.position, record.start, record.epoch, record.status,
        record.content, at,
    ))  # fmt: skip
    fetch(db, sql.COUNT_LATE, (record.tenant, record.task))


# --- parts of commits -----------------------------------------------------------------------------------


def _earlier(db: apsw.Connection, commit: Commit, *, state: TaskState, epoch: int, seq: int) -> Receipt:
    """The receipt of this very commit if it was written before and its answer was lost, else Fenced."""
    end = commit.seq + len(commit.bodies)
    if end <= seq:
        found = fetch(db, sql.COMMIT_AT, (commit.tenant, commit.task, end))
        if found and found[0][0] == commit.commit_id:
            return Receipt(end, found[0][1])
    raise rules.fenced(commit, state=state, epoch=epoch, seq=seq)


def _move(
    db: apsw.Connection,
    tenant: str,
    task: str,
    *,
    state: TaskState,
    epoch: int,
    epoch_after: int,
    seq: int,
    end: int,
    chain: str,
    at: float,
    seconds: float,
    totals: Totals,
    move: rules.Move,
) -> None:
    fetch(db, sql.MOVE, {
        "seq": end, "chain": chain, "at": at, "seconds": seconds, "tokens": totals.tokens,
        "cost_nano": totals.cost_nano, "steps": totals.steps, "calls": totals.calls, "to": str(move.state),
        "epoch_after": epoch_after, "attempts": move.attempts, "waiting_for": move.waiting_for,
        "reason": None if move.reason is None else str(move.reason), "expires_at": move.expires_at,
        "tenant": tenant, "task": task, "epoch": epoch, "seq_before": seq, "state": str(state),
    })  # fmt: skip


def _write_entries(
    db: apsw.Connection,
    number: int,
    seq: int,
    envelope: tuple[int, float, str, int, str, float],
    encoded: tuple[Encoded, ...],
) -> None:
    for one in encoded:
        seq += 1
        fetch(db, sql.ENTRY, (number, seq, *envelope, one.kind, ENTRY_VERSION, one.data))


def _accept(db: apsw.Connection, tenant: str, task: str, bodies: Iterable[EntryBody]) -> None:
    if (definition := rules.accepted(bodies)) is not None:
        fetch(db, sql.ACCEPT, (definition, tenant, task))


def _hold(
    db: apsw.Connection,
    tenant: str,
    task: str,
    *,
    settle: Iterable[tuple[str, str, str]],
    operations: Iterable[tuple[str, int, int]],
) -> None:
    for key, status, content in settle:
        held = _operation(db, tenant, key)
        _keep(db, tenant, key, rules.settle_operation(held, key, task=task, status=status, content=content))
    for key, step, position in operations:
        held = _operation(db, tenant, key)
        _keep(db, tenant, key, rules.claim_operation(held, key, task=task, step=step, position=position))


def _operation(db: apsw.Connection, tenant: str, key: str) -> Operation | None:
    found = fetch(db, sql.OPERATION, (tenant, key))
    return Operation(*found[0]) if found else None


def _keep(db: apsw.Connection, tenant: str, key: str, held: Operation) -> None:
    values = (tenant, key, held.status, held.content, held.task, held.step, held.position)
    fetch(db, sql.HOLD, values)
