"""Is a store sound? Every check looks at all there is, changes nothing, and says what it found in a sentence.

Rule: what one check finds never keeps the next one from looking.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from msgspec import Struct

from fencepost.core.canonical import digest
from fencepost.core.entries import CallEnded, Entry
from fencepost.core.errors import StoreFailed, TaskNotFound
from fencepost.core.state import fold
from fencepost.ports import Store, TaskRow
from fencepost.service.reading import TASKS_LOOKED_AT

# A clock may be set by so much between two commits without anything going wrong. Seconds.
CLOCK_SECONDS = 60.0
# With less room a burst of commits may fail, and so may the pruning that would help. Bytes.
ROOM_LEAST = 64 * 1024 * 1024
# Of what is wrong, so many are named and the others counted: a broken disk breaks everything.
NAMED_MOST = 5


class Finding(Struct, frozen=True):
    """What one check found. `problems` are sentences; the first is about the first place, in order of opening."""

    check: str
    said: str
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def room(path: Path) -> Finding:
    """Whether the disk has room for bursts of commits."""
    return said_of_room(shutil.disk_usage(path.parent).free)


def said_of_room(free: int) -> Finding:
    """The finding about so many free bytes."""
    said = f"the disk has {free // 1024**2:,} MiB left"
    return Finding("room", said, (f"{said}; free some before commits fail",) if free < ROOM_LEAST else ())


async def checkup(store: Store, *, tenant: str = "local") -> AsyncIterator[Finding]:
    """Each finding as soon as it is there."""
    damage = await store.check()
    yield Finding("file", "SQLite finds nothing wrong with the file", damage)
    try:
        rows = (await store.tasks(tenant, limit=TASKS_LOOKED_AT))[::-1]
    except StoreFailed as why:
        yield Finding("tasks", "", (str(why),))
        return
    sound: list[TaskRow] = []
    yield await _chains(store, rows, sound)
    yield await _totals(store, sound)
    yield await _artifacts(store, rows)
    yield await _clock(store, rows)


async def _chains(store: Store, rows: tuple[TaskRow, ...], sound: list[TaskRow]) -> Finding:
    """The finding; the rows whose journals may be relied on are added to `sound`."""
    problems = []
    for row in rows:
        try:
            difference = await store.verify(row.tenant, row.id)
        except TaskNotFound:  # pruned meanwhile
            continue
        except StoreFailed as why:
            difference = str(why)
        if difference is None:
            sound.append(row)
        else:
            problems.append(f"task {row.id}: {difference}")
    return Finding(
        "journals", f"the journals of {_count(rows)} are whole and say what their rows say", _some(problems)
    )


async def _totals(store: Store, rows: Sequence[TaskRow]) -> Finding:
    problems = []
    for row in rows:
        entries = await _journal(store, row)
        if entries is None:
            continue
        state = fold(entry.body for entry in entries)
        for name in ("tokens", "cost_nano", "steps", "calls"):
            kept, summed = getattr(row, name), getattr(state, name)
            if kept != summed:
                problems.append(f"task {row.id}: the row counts {name} {kept}, its journal {summed}")
    return Finding(
        "totals",
        f"steps, calls, tokens and cost of {_count(rows)} are those of their journals",
        _some(problems),
    )


async def _artifacts(store: Store, rows: Sequence[TaskRow]) -> Finding:
    problems: list[str] = []
    unchanged: dict[str, bool] = {}  # a large result is read once, however many tasks name it
    for row in rows:
        for entry in await _journal(store, row) or ():
            named = entry.body.artifact if isinstance(entry.body, CallEnded) else ""
            if not named:
                continue
            where = f"task {row.id}, entry {entry.seq}: the artifact {named}"
            try:
                whole = await store.artifact(row.tenant, named, task=row.id)
            except (TaskNotFound, StoreFailed):
                problems.append(f"{where} is missing; a backup holds it")
                continue
            if named not in unchanged:
                unchanged[named] = digest(whole, "result") == named
            if not unchanged[named]:
                problems.append(f"{where} was changed; a backup holds it")
    return Finding("artifacts", f"{len(unchanged)} whole results are kept and unchanged", _some(problems))


async def _clock(store: Store, rows: tuple[TaskRow, ...]) -> Finding:
    now = await store.now()
    newest = max((row.updated_at for row in rows), default=now)
    problems: tuple[str, ...] = ()
    if newest > now + CLOCK_SECONDS:
        behind = f"the clock is {newest - now:.0f} s behind the newest entry"
        problems = (f"{behind}; set it right, or leases and expiries wait for it",)
    return Finding("clock", "the clock is not behind the newest entry", problems)


async def _journal(store: Store, row: TaskRow) -> tuple[Entry, ...] | None:
    """The journal up to the row; None when it cannot be read, which the check of journals says."""
    try:
        entries = await store.entries(row.tenant, row.id, limit=row.seq)
    except (TaskNotFound, StoreFailed):
        return None
    return entries if len(entries) == row.seq else None


def _count(rows: Sequence[TaskRow]) -> str:
    return "1 task" if len(rows) == 1 else f"{len(rows)} tasks"


def _some(problems: list[str]) -> tuple[str, ...]:
    more = len(problems) - NAMED_MOST
    return (*problems[:NAMED_MOST], *((f"and {more} more like these",) if more > 0 else ()))
