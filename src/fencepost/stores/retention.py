"""Which tasks that are over may go: the rule that both stores prune by (contract 12.1).

Rule 1: the longest over goes first, and only what an age or a bound of bytes asks for.
Rule 2: an artifact counts as freed with the last task that names it, so that a bound is met exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from fencepost.ports import Tombstone

# A store that deletes has its lock, and runs beside it cannot renew their leases: this much takes a second or two.
BATCH_BYTES = 256 * 1024 * 1024


class Bounds(Struct, frozen=True, gc=False):
    """What a pruning was asked for; see `Store.prune`. Seconds and bytes; None asks for nothing.

    `at_once` ends a batch with the task that reaches so many bytes; None is for dry runs, which hold nobody up.
    """

    tenant: str | None
    older_than: float | None
    keep_bytes: int | None
    limit: int
    at_once: int | None = BATCH_BYTES


class Over(Struct, frozen=True, gc=False):
    """A task that is over and that nobody live needs: its tombstone to be, with its own bytes as `freed_bytes`.

    `artifacts` are (digest, size, how many tasks of the tenant name it). `number` is the store's own name for it.
    """

    tombstone: Tombstone
    artifacts: tuple[tuple[str, int, int], ...] = ()
    number: int = 0


def due(over: Iterable[Over], bounds: Bounds, *, now: float, stored: int) -> Iterator[tuple[Tombstone, Over]]:
    """The tasks to drop, with their tombstones; `over` comes longest over first, `stored` is all that is kept."""
    excess = 0 if bounds.keep_bytes is None else stored - bounds.keep_bytes
    released: Counter[tuple[str, str]] = Counter()
    left, taken = bounds.limit, 0
    for one in over:
        stone = one.tombstone
        is_old = bounds.older_than is not None and stone.ended_at <= now - bounds.older_than
        full = bounds.at_once is not None and taken >= bounds.at_once
        if left == 0 or full or not (is_old or excess > 0):
            return
        freed = stone.freed_bytes
        for digest, size, uses in one.artifacts:
            released[stone.tenant, digest] += 1
            freed += size if released[stone.tenant, digest] == uses else 0
        left, excess, taken = left - 1, excess - freed, taken + freed
        yield replace(stone, freed_bytes=freed), one
