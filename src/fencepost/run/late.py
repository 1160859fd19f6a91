"""What a call brings after it was closed or its run fenced: kept beside the journal, never in it (contract 6.7)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

from fencepost.core.entries import CallEnded
from fencepost.core.errors import StoreFailed, TaskNotFound
from fencepost.core.limits import Limits
from fencepost.core.state import State
from fencepost.ports import LateRecord, Lease, Store
from fencepost.run.perform import Call, Lost, Outcome, ended, is_cancelled


class LateShelf:
    """Where one run puts its late results."""

    def __init__(self, store: Store, lease: Lease, limits: Limits) -> None:
        self._store, self._lease, self._limits = store, lease, limits
        self._writing: set[asyncio.Task[Any]] = set()

    def keep(self, call: Call, outcome: Outcome) -> None:
        """Record it in a task of its own: nobody waits for it."""
        if not is_cancelled(outcome):  # else it ended as it was told to, and brought nothing
            self.hold(asyncio.get_running_loop().create_task(self.put(call, outcome)))

    def hold(self, task: asyncio.Task[Any]) -> None:
        """Keep a task from being forgotten before it has ended."""
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def put(self, call: Call, outcome: Outcome) -> None:
        """Record what the call brought, unless that is nothing."""
        if is_cancelled(outcome):
            return
        assert not isinstance(outcome, Lost)
        body, _ = ended(call, outcome, self._limits)
        await self._record(body, call.context.start)

    async def put_refused(self, bodies: Iterable[object], state: State) -> None:
        """Record the results a refused commit did not take: they are late, not lost (contract 1)."""
        for body in bodies:
            if isinstance(body, CallEnded) and (start := state.open[body.position].starts):
                await self._record(body, start)

    async def _record(self, body: CallEnded, start: int) -> None:
        lease, status = self._lease, body.status.value
        record = LateRecord(
            lease.tenant, lease.task, body.step, body.position, start, lease.epoch, status, body.content
        )
        # A store that fails now has nobody to tell: the run went on without this result long ago. And a task that
        # was pruned meanwhile has nothing a result could stand beside.
        with contextlib.suppress(StoreFailed, TaskNotFound):
            await self._store.record_late(record)
