"""What people see of tasks: reading needs no lease, takes no lock and changes nothing.

Rule 1: a journal with an entry that cannot be read is shown without it, and the entry is named.
Rule 2: an id may be cut short as long as it fits one task only; what fits none or several is refused.
"""

from __future__ import annotations

from msgspec import Struct

from fencepost.core.entries import Entry, Opened, Stopped
from fencepost.core.errors import StoreCorrupt, StoreFailed, StoreNewer, TaskNotFound
from fencepost.core.state import State, fold
from fencepost.ports import LateRecord, Store, TaskRow

# A list that somebody reads, or a short id is looked for in; more tasks than this are pruned long before.
TASKS_LOOKED_AT = 100_000
# So many of the tasks that a short id fits are named in the refusal.
FITTING_NAMED = 4


class Damage(Struct, frozen=True):
    """An entry that cannot be read, and why."""

    seq: int
    problem: str


class Reading(Struct, frozen=True):
    """A task as far as it can be read: row, readable entries in order, what is damaged, what came late."""

    row: TaskRow
    entries: tuple[Entry, ...]
    damage: tuple[Damage, ...] = ()
    late: tuple[LateRecord, ...] = ()

    @property
    def opened(self) -> Opened | None:
        """Entry 1, None when it is damaged."""
        first = self.entries[0].body if self.entries else None
        return first if isinstance(first, Opened) else None

    @property
    def stopped(self) -> Stopped | None:
        """The terminal entry, if there is one that can be read."""
        last = self.entries[-1].body if self.entries else None
        return last if isinstance(last, Stopped) else None

    @property
    def state(self) -> State | None:
        """What the journal amounts to, None where a hole in it leaves that open."""
        return None if self.damage else fold(entry.body for entry in self.entries)


async def find_task(store: Store, given: str, *, tenant: str = "local") -> str:
    """The id of the one task that `given` names: all of it, or its beginning with or without "task-"."""
    try:
        return (await store.row(tenant, given)).id
    except TaskNotFound:
        pass
    wanted = (given, f"task-{given}")
    rows = await store.tasks(tenant, limit=TASKS_LOOKED_AT)
    fitting = [row.id for row in rows if given and row.id.startswith(wanted)]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise TaskNotFound(f"there is no task {given!r}; `fencepost list` shows which there are")
    named = ", ".join(fitting[:FITTING_NAMED]) + (", …" if len(fitting) > FITTING_NAMED else "")
    raise TaskNotFound(f"{given!r} fits {len(fitting)} tasks ({named}); give more of the id")


async def read_task(store: Store, task: str, *, tenant: str = "local") -> Reading:
    """The task with all of its journal that can be read."""
    row = await store.row(tenant, task)
    late = await store.late(tenant, task)
    try:  # a journal only grows: up to the row's seq it is that of the row's moment
        entries = await store.entries(tenant, task, limit=row.seq)
    except (StoreCorrupt, StoreNewer):
        entries = ()
    else:
        if len(entries) == row.seq:
            return Reading(row, entries, late=late)
    entries, damage = await _one_by_one(store, tenant, row)
    return Reading(row, entries, damage, late)


async def _one_by_one(
    store: Store, tenant: str, row: TaskRow
) -> tuple[tuple[Entry, ...], tuple[Damage, ...]]:
    entries: list[Entry] = []
    damage: list[Damage] = []
    for seq in range(1, row.seq + 1):
        try:
            found = await store.entries(tenant, row.id, after=seq - 1, limit=1)
        except StoreFailed as why:
            damage.append(Damage(seq, str(why)))
            continue
        if not found or found[0].seq != seq:
            damage.append(Damage(seq, f"journal entry {seq} is missing; restore a backup"))
            continue
        entries.extend(found)
    return tuple(entries), tuple(damage)
