"""The named points at which a store can be paused, so that a test can die, wait or interleave exactly there.

Rule 1: the names are public and stable; a store calls them in this order for every write.
Rule 2: `before` is outside the transaction, `inside` after its last statement and before COMMIT, `after` when
it is durable and the caller has not heard of it yet. What a hook raises at `inside` undoes the transaction;
a write that finds nothing to do may skip `inside` and `after`.
"""

from __future__ import annotations

from collections.abc import Callable

Hooks = Callable[[str], None]

WRITES = ("open_task", "claim", "append", "release", "beat", "intervene", "record_late", "audit", "prune")
POINTS = ("before", "inside", "after")
HOOKS: tuple[str, ...] = tuple(f"{write}.{point}" for write in WRITES for point in POINTS)
