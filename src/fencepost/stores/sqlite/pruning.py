"""What pruning does inside its transaction: look, ask `retention`, write tombstones, delete.

Rule: what is found is found before anything is deleted, so a dry run and a pruning name the same tasks.
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw

from fencepost.core.errors import TaskNotFound
from fencepost.core.lifecycle import StopReason, TaskState
from fencepost.ports import Tombstone
from fencepost.stores import retention
from fencepost.stores.retention import Bounds, Over
from fencepost.stores.sqlite import statements as sql
from fencepost.stores.sqlite.statements import fetch


def due(db: apsw.Connection, bounds: Bounds, *, at: float) -> list[tuple[Over, Tombstone]]:
    """What a pruning would drop now, longest over first."""
    stored = 0 if bounds.keep_bytes is None else stored_bytes(db, bounds.tenant)
    cursor = db.execute(sql.OVER, {"tenant": bounds.tenant})
    try:
        found = retention.due(_over(db, cursor, at), bounds, now=at, stored=stored)
        return [(one, stone) for stone, one in found]
    finally:
        cursor.close()  # an unfinished SELECT would make COMMIT fail


def prune(db: apsw.Connection, bounds: Bounds, *, at: float) -> tuple[Tombstone, ...]:
    """The tombstones of the tasks that this transaction dropped."""
    found = due(db, bounds, at=at)
    for one, stone in found:
        for statement in sql.DROP:
            fetch(db, statement, (one.number,))
        for digest, _, _ in one.artifacts:
            fetch(db, sql.FREE, {"tenant": stone.tenant, "digest": digest})
        fetch(db, sql.BURY, (
            stone.tenant, stone.id, stone.agent, str(stone.state), str(stone.reason), stone.seq, stone.chain,
            stone.created_at, stone.ended_at, stone.pruned_at, stone.freed_bytes,
        ))  # fmt: skip
    return tuple(stone for _, stone in found)


def read_tombstone(db: apsw.Connection, tenant: str, task: str) -> Tombstone:
    """What is left of a pruned task, or TaskNotFound."""
    found = fetch(db, sql.TOMBSTONE, (tenant, task))
    if not found:
        raise TaskNotFound(f"no task {task} was pruned here; list the tasks to see which there are")
    _, name, agent, state, reason, *others = found[0]
    return Tombstone(tenant, name, agent, TaskState(state), StopReason(reason), *others)


def stored_bytes(db: apsw.Connection, tenant: str | None) -> int:
    """How many bytes of entries, late records and artifacts are kept."""
    return int(fetch(db, sql.STORED_BYTES, {"tenant": tenant})[0][0])


def _over(db: apsw.Connection, cursor: apsw.Cursor, at: float) -> Iterator[Over]:
    for number, tenant, task, agent, state, reason, seq, chain, created_at, ended_at in cursor:
        try:
            how = TaskState(state), StopReason(reason)
        except ValueError:  # a damaged row: it stays, in nobody's way
            continue
        own = fetch(db, sql.TASK_BYTES, {"number": number})[0][0]
        stone = Tombstone(tenant, task, agent, *how, seq, chain, created_at, ended_at, at, own)
        artifacts = fetch(db, sql.TASK_ARTIFACTS, {"number": number, "tenant": tenant})
        yield Over(stone, tuple(artifacts), number)
