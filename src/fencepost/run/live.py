"""Lifecycle notices and deltas for whoever watches: may be lost, are never read back (contract 1).

Each carries (task, epoch). A notice of an older epoch than the newest known one is dropped, so that nobody
sees a fenced run talk. Nothing is built when nobody listens. A listener that fails is reported to the event
loop and stops nothing (contract 12.5: a watcher leaving never stops a task).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from fencepost.core.entries import EntryBody
from fencepost.core.lifecycle import TaskState
from fencepost.ports import Delta, Lease, Totals

# Epochs are remembered for this many tasks; a fenced run is heard of for far fewer at a time.
EPOCHS_KEPT = 10_000


class Event(Struct, frozen=True):
    """One notice. `kind` is "start", "entry", "delta" or a terminal kind (TERMINAL_KINDS)."""

    kind: str
    tenant: str
    task: str
    epoch: int
    detail: str = ""
    entry: EntryBody | None = None
    delta: Delta | None = None
    state: TaskState | None = None
    totals: Totals | None = None
    seconds: float = 0.0


# Every run's last event is exactly one of these.
TERMINAL_KINDS = frozenset({"stopped", "waiting", "released", "fenced", "refused", "failed"})

Listener = Callable[[Event], None]


class Interruptible(Protocol):
    """A run that can be told that it lost its task."""

    lease: Lease

    def fenced(self) -> None:
        """Stop at once and write nothing."""
        ...


class Live:
    """The bus of one process: listeners, the newest epoch of each task, and the runs that are active."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self.listening = False  # whether anybody would see an event; looked at for every entry
        self._epochs: OrderedDict[tuple[str, str], int] = OrderedDict()
        self.running: dict[tuple[str, str], Interruptible] = {}

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event from now on; returns the way to stop it."""
        self._listeners.append(listener)
        self.listening = True

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)
                self.listening = bool(self._listeners)

        return stop

    def publish(self, event: Event) -> None:
        """Tell the listeners, unless a newer epoch of the task is known."""
        if event.epoch < self._epochs.get((event.tenant, event.task), 0):
            return
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - foreign code
                failed = f"a listener failed at {event.kind!r} of task {event.task}"
                asyncio.get_running_loop().call_exception_handler({"message": failed, "exception": error})

    def newest(self, tenant: str, task: str) -> int:
        """The newest epoch of the task known here, 0 when none is."""
        return self._epochs.get((tenant, task), 0)

    def advance(self, tenant: str, task: str, epoch: int) -> None:
        """Nothing of an older epoch is told from now on."""
        key = (tenant, task)
        self._epochs[key] = max(epoch, self._epochs.get(key, 0))
        self._epochs.move_to_end(key)
        if len(self._epochs) > EPOCHS_KEPT:
            self._epochs.popitem(last=False)

    def fence(self, tenant: str, task: str, epoch: int) -> None:
        """Tell the task's run in this process, if there is one, that the epoch moved past it.

        A run that claimed the task since then is left alone: it owns a newer epoch.
        """
        self.advance(tenant, task, epoch)
        run = self.running.get((tenant, task))
        if run is not None and run.lease.epoch < epoch:
            run.fenced()
