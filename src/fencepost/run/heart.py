"""Heartbeats off the event loop: a blocked loop does not lose its lease, a refused beat ends the run (contract 7.6)."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from fencepost.core.errors import StoreFailed
from fencepost.ports import Beat, Clock, Store
from fencepost.run.loop import Run

# A lease is renewed this many times before it would end, so that two lost beats cost nothing.
BEATS_PER_LEASE = 3
# At least this often, so that a cancel from another process is noticed soon. Seconds.
BEAT_SECONDS_MOST = 1.0
# A heart between two beats is gone at once; one in a beat may wait for another process, and the loop may not.
STOP_SECONDS = 0.005


class Heart:
    """A thread that renews one run's lease until it is stopped or refused."""

    def __init__(self, store: Store, run: Run, clock: Clock, lease_seconds: float) -> None:
        self._store, self._run, self._clock = store, run, clock
        self._lease_seconds = lease_seconds
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name=f"fencepost-heart-{run.task}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread: at once, or after the beat it is in, whose answer is about nobody any more."""
        self._stopped.set()
        self._thread.join(STOP_SECONDS)

    def _beat_on(self) -> None:
        pause = min(self._lease_seconds / BEATS_PER_LEASE, BEAT_SECONDS_MOST)
        while not self._stopped.wait(pause):
            began = self._clock.monotonic()
            beat = Beat(self._run.tenant, self._run.task, self._run.lease.epoch, self._run.seconds())
            try:
                refused = self._store.beat((beat,), lease_seconds=self._lease_seconds)
            except StoreFailed:
                continue  # the lease still runs; the next beat may succeed before it ends
            if refused:
                with contextlib.suppress(RuntimeError):  # the loop may be closing
                    self._loop.call_soon_threadsafe(self._run.fenced)
                return
            self._run.lease_until = began + self._lease_seconds
