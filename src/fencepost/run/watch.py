"""One timer for one run: the deadline of the effect in progress, and the grace after it.

Setting a deadline is one assignment: the timer is only moved when a new deadline lies before it, and looks again
when it fires too early. (A timer for every effect costs more than all else a step does.)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


def _nobody() -> None:
    """Who is told after the end."""


class Watch:
    """Calls `expired` when the armed deadline passes, unless it is armed anew before; nobody has to disarm it."""

    __slots__ = ("_deadline", "_due", "_expired", "_handle", "_loop", "_time")

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[], None]) -> None:
        self._loop, self._expired = loop, expired
        self._deadline = math.inf
        self._handle: asyncio.TimerHandle | None = None
        self._due = math.inf  # when the handle fires
        self._time = loop.time

    def arm(self, seconds: float) -> None:
        """Expire so many seconds from now."""
        deadline = self._deadline = self._time() + seconds
        if deadline < self._due:
            if self._handle is not None:
                self._handle.cancel()
            self._handle = self._loop.call_at(deadline, self._fired)
            self._due = deadline

    def close(self) -> None:
        """Forget the timer, and whom it would have told."""
        self._expired = _nobody
        if self._handle is not None:
            self._handle.cancel()
            self._handle, self._due = None, math.inf

    def _fired(self) -> None:
        self._handle, self._due = None, math.inf
        if self._time() < self._deadline:
            self._due = self._deadline
            self._handle = self._loop.call_at(self._due, self._fired)
            return
        self._expired()
