"""An event loop whose time jumps: a recorded timeout takes no time when it is played again.

Rule: time jumps only when nothing is ready and no real work is awaited, so that a real effect is never
timed out by a jump.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class NothingToAwait(RuntimeError):
    """Everything waits, and no time that could pass would end it."""


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop with a time of its own; `real` counts the real effects in progress."""

    def __init__(self) -> None:
        self.real, self._moment = 0, 0.0
        super().__init__(_Jumper(self))

    def time(self) -> float:
        """Seconds since the loop was made, jumps included."""
        return self._moment

    def pass_time(self, seconds: float) -> None:
        """It is so many seconds later."""
        self._moment += seconds


class _Jumper(selectors.DefaultSelector):
    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready; when nothing is, time has passed."""
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self._loop.real:
            began = time.monotonic()
            ready = super().select(timeout)
            self._loop.pass_time(time.monotonic() - began)
        elif timeout is None:
            raise NothingToAwait("the replay waits for something that the journal does not hold")
        else:
            self._loop.pass_time(timeout)
        return ready


def run_jumping(work: Coroutine[Any, Any, T]) -> T:
    """What the work returns, run in a loop of its own; what it leaves behind is cancelled."""
    loop = JumpingLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
