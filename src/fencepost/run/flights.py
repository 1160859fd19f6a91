"""Calls in asyncio tasks of their own: one of a parallel group, or a body in a thread.

Rule 1: a call lands exactly once: with its outcome, or with the reason why nobody waits for it any longer.
Rule 2: it is asked to end once, and then has the grace period; a thread cannot be asked, so it is left at once.
Rule 3: what it brings after it has landed is late (late.py), never an outcome.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from fencepost.run.late import LateShelf
from fencepost.run.perform import Call, Lost, Outcome, Raised, Returned, is_cancelled


class Flight:
    """One call on its way."""

    __slots__ = ("call", "closed", "task", "timer", "why")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.closed = False  # it has landed, or nobody waits for it any more
        self.why: Lost | None = None  # why it was asked to end
        self.task: asyncio.Task[Returned | Raised] | None = None
        self.timer: asyncio.TimerHandle | None = None


class Flights:
    """The calls of one run that are in flight, and those that have landed and were not fetched yet.

    `deadline` is told when a call's time is over, `stopped` when one was cancelled by somebody else: the process
    is going down.
    """

    def __init__(
        self,
        late: LateShelf,
        *,
        grace_seconds: float,
        deadline: Callable[[], None],
        stopped: Callable[[], None],
    ) -> None:
        self._late, self._grace = late, grace_seconds
        self._deadline, self._stopped = deadline, stopped
        self._loop = asyncio.get_running_loop()
        self._up: dict[int, Flight] = {}
        self._landed: deque[tuple[Flight, Outcome]] = deque()
        self._wake: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._up)

    @property
    def any_landed(self) -> bool:
        """Whether `fetch` would return at once."""
        return bool(self._landed)

    def take_off(self, call: Call) -> None:
        """Run the call in a task of its own, until its deadline."""
        flight = Flight(call)
        self._up[call.context.position] = flight
        flight.task = self._loop.create_task(_fly(call))
        flight.task.add_done_callback(lambda task: self._ended(flight, task))
        flight.timer = self._loop.call_later(call.context.seconds, self._cancel, flight, Lost.TIMEOUT)

    def cancel(self, why: Lost) -> None:
        """Ask every call in flight to end."""
        for flight in list(self._up.values()):
            self._cancel(flight, why)

    async def fetch(self) -> tuple[Call, Outcome]:
        """The next call that has landed, and how; a cancel from outside is told to `stopped`."""
        while not self._landed:
            self._wake = self._loop.create_future()
            try:
                await self._wake
            except asyncio.CancelledError:
                take_back_cancel()
                self._stopped()
            finally:
                self._wake = None
        flight, outcome = self._landed.popleft()
        self._up.pop(flight.call.context.position, None)
        return flight.call, outcome

    def forget(self) -> None:
        """Nobody waits for any of them: the run is over."""
        for flight in self._up.values():
            assert flight.task is not None
            if not flight.call.tool.threaded:
                flight.task.cancel()
            self._abandon(flight)
        self._up.clear()

    def _cancel(self, flight: Flight, why: Lost) -> None:
        if flight.closed or flight.why is not None:  # asked once; a second cancel would break its clean-up
            return
        flight.why = why
        if why is Lost.TIMEOUT:
            self._deadline()
        if flight.call.tool.threaded:
            self._abandon(flight)
            return
        assert flight.task is not None
        assert flight.timer is not None
        flight.timer.cancel()
        flight.timer = self._loop.call_later(self._grace, self._abandon, flight)
        flight.task.cancel()

    def _abandon(self, flight: Flight) -> None:
        if flight.closed:
            return
        flight.closed = True
        self._land(flight, flight.why or Lost.FENCED)

    def _ended(self, flight: Flight, task: asyncio.Task[Returned | Raised]) -> None:
        assert flight.timer is not None
        flight.timer.cancel()
        outcome: Outcome = Raised(asyncio.CancelledError()) if task.cancelled() else task.result()
        if flight.closed:
            self._late.keep(flight.call, outcome)
            return
        flight.closed = True
        if flight.why is not None:
            self._late.keep(flight.call, outcome)
            outcome = flight.why
        elif is_cancelled(outcome) and (task.cancelled() or task.cancelling()):
            self._stopped()
            outcome = Lost.RELEASE
        self._land(flight, outcome)

    def _land(self, flight: Flight, outcome: Outcome) -> None:
        self._landed.append((flight, outcome))
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def take_back_cancel() -> bool:
    """Whether this asyncio task was asked to end; it no longer is, because the run sees to that itself."""
    task = asyncio.current_task()
    assert task is not None
    asked = task.cancelling() > 0
    while task.cancelling():
        task.uncancel()
    return asked


async def _fly(call: Call) -> Returned | Raised:
    """Run a call in this task of its own."""
    try:
        return Returned(await call.tool.run(call.prepared, call.context))
    except BaseException as error:  # noqa: BLE001 - foreign code makes one failed call (contract 5.2)
        return Raised(error)
