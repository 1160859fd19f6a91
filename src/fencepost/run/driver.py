"""The asyncio task that carries a run, and the one effect at a time that it waits for in that task.

Rule 1: only an effect is ever cut short; whatever else the task awaits, above all a commit, is not.
Rule 2: an effect is asked to end once, and then has the grace period. After that its asyncio task is left to
itself, and the run goes on in a new one.
Rule 3: what an effect brings after it was cut short is late (late.py), never an outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fencepost.run.flights import take_back_cancel
from fencepost.run.late import LateShelf
from fencepost.run.perform import Call, Lost, Outcome, Raised, Returned, is_cancelled
from fencepost.run.watch import Watch

# An effect and what came of it, for the asyncio task that goes on where another was left to itself.
Concluded = tuple[Any, Outcome]


class Abandoned(Exception):
    """This asyncio task was left to itself: it ends without a word."""


class Driver:
    """Carries one run from `set_out` to `close` by `drive`.

    `deadline` is told when an effect's time is over, `stopped` when the task was cancelled by somebody else: the
    process is going down.
    """

    __slots__ = (
        "_abandoning", "_closed", "_deadline", "_drive", "_effect", "_grace", "_late", "_loop", "_stopped", "_task",
        "_watch", "_why",
    )  # fmt: skip

    def __init__(
        self,
        drive: Callable[[Concluded | None], Coroutine[Any, Any, None]],
        late: LateShelf,
        *,
        grace_seconds: float,
        deadline: Callable[[], None],
        stopped: Callable[[], None],
    ) -> None:
        self._drive, self._late, self._grace = drive, late, grace_seconds
        self._deadline, self._stopped = deadline, stopped
        self._loop = asyncio.get_running_loop()
        self._watch = Watch(self._loop, self._deadline_passed)
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._effect: object = None  # the one in progress
        self._why: Lost | None = None  # it was cut short
        self._abandoning: asyncio.TimerHandle | None = None  # its grace

    def set_out(self, concluded: Concluded | None = None) -> None:
        """Go on in a new asyncio task, with what came of an effect."""
        self._task = self._loop.create_task(self._drive(concluded))
        self._task.add_done_callback(lambda task: self._gone(task, concluded))

    def carries(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether the run is carried by this asyncio task; one that was left to itself carries nothing."""
        return task is self._task

    def close(self) -> None:
        """The run is over."""
        self._closed = True
        self._watch.close()

    def cut_short(self, why: Lost) -> None:
        """Ask the effect in progress to end, if there is one that was not asked yet."""
        if self._effect is None or self._abandoning is not None:
            return
        assert self._task is not None
        self._why = why
        self._task.cancel()
        self._abandoning = self._loop.call_later(self._grace, self._abandon, self._effect, why)

    async def wait_for(self, effect: Any, awaitable: Awaitable[Any], seconds: float) -> Outcome:
        """What foreign code comes to in this task within so many seconds; raises Abandoned when nobody cares."""
        self._effect = effect
        self._watch.arm(seconds)
        task = self._task
        assert task is not None
        outcome: Outcome
        try:
            outcome = Returned(await awaitable)
        except BaseException as error:  # noqa: BLE001 - foreign code makes one failed call (contract 5.2)
            outcome = Raised(error)
        if self._task is not task:
            await self._land_late(effect, outcome)
            raise Abandoned
        self._effect = None
        why, self._why = self._why, None
        if self._abandoning is not None:
            self._abandoning.cancel()
            self._abandoning = None
        if why is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)  # an effect that ended its own run has a cancel of ours still to come
            take_back_cancel()
            await self._land_late(effect, outcome)
            return why
        # A cancel from outside ends the run: the process is going down. One that a body left behind is forgotten.
        if task.cancelling() and take_back_cancel() and is_cancelled(outcome):
            self._stopped()
            return Lost.RELEASE
        return outcome

    def _deadline_passed(self) -> None:
        self._deadline()
        self.cut_short(Lost.TIMEOUT)

    def _abandon(self, effect: object, why: Lost) -> None:
        self._abandoning = None
        assert self._effect is effect, "an effect that ended stops this timer"
        assert self._task is not None
        self._late.hold(self._task)
        self._effect = self._why = None
        self.set_out((effect, why))

    def _gone(self, task: asyncio.Task[None], concluded: Concluded | None) -> None:
        if task is self._task and not self._closed:  # cancelled before its first step
            self._stopped()
            self.set_out(concluded)

    async def _land_late(self, effect: object, outcome: Outcome) -> None:
        if isinstance(effect, Call):
            await self._late.put(effect, outcome)
