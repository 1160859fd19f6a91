"""Dropping what is over: in batches, so that runs beside it commit between them (contract 12.1)."""

from __future__ import annotations

from msgspec import Struct

from fencepost.core.errors import TaskNotFound
from fencepost.ports import Store, Tombstone

# Contract 12.1: how long a task is kept after its end. Seconds.
KEPT_SECONDS = 30 * 86_400.0
# A dry run changes nothing, so it has no batches to be called for.
ALL_OF_THEM = 10_000_000


class Pruning(Struct, frozen=True):
    """What went, or would go, longest over first, and how many bytes of tasks were stored before it."""

    tombstones: tuple[Tombstone, ...]
    stored_bytes: int

    @property
    def freed_bytes(self) -> int:
        """How many of the stored bytes went."""
        return sum(stone.freed_bytes for stone in self.tombstones)


async def prune(
    store: Store,
    *,
    tenant: str = "local",
    older_than: float | None = KEPT_SECONDS,
    keep_bytes: int | None = None,
    dry_run: bool = False,
) -> Pruning:
    """Drop the tenant's tasks that are over for `older_than` seconds, and the oldest beyond `keep_bytes`."""
    before = await store.stored_bytes(tenant)
    found: list[Tombstone] = []
    while batch := await _batch(store, tenant, older_than, keep_bytes, dry_run=dry_run):
        found += batch
        if dry_run:
            break
    return Pruning(tuple(found), before)


async def find_tombstone(store: Store, given: str, *, tenant: str = "local") -> Tombstone | None:
    """What is left of the pruned task of that id, with or without "task-"; None when there is none."""
    for name in (given, f"task-{given}"):
        try:
            return await store.tombstone(tenant, name)
        except TaskNotFound:
            continue
    return None


async def _batch(
    store: Store, tenant: str, older_than: float | None, keep_bytes: int | None, *, dry_run: bool
) -> tuple[Tombstone, ...]:
    if dry_run:
        return await store.prune(
            tenant, older_than=older_than, keep_bytes=keep_bytes, limit=ALL_OF_THEM, dry_run=True
        )
    return await store.prune(tenant, older_than=older_than, keep_bytes=keep_bytes)
