"""One timer for one run: the deadline of the effect in progress, and the grace after it.

Setting a deadline is one assignment: the timer is only moved when a new deadline lies before it, and looks again
when it fires too early. (A timer for every effect costs more than all else a step does.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Watch:
    """Calls `expired` when the armed deadline passes; `disarm` makes it not."""

    __slots__ = ("_deadline", "_expired", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[], None]) -> None:
        self._loop, self._expired = loop, expired
        self._deadline: float | None = None
        self._handle: asyncio.TimerHandle | None = None

    def arm(self, seconds: float) -> None:
        """Expire so many seconds from now."""
        deadline = self._deadline = self._loop.time() + seconds
        handle = self._handle
        if handle is None or handle.when() > deadline:
            if handle is not None:
                handle.cancel()
            self._handle = self._loop.call_at(deadline, self._fired)

    def disarm(self) -> None:
        """Nothing expires until it is armed again."""
        self._deadline = None

    def close(self) -> None:
        """Forget the timer."""
        self._deadline = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fired(self) -> None:
        self._handle = None
        if self._deadline is None:
            return
        if self._loop.time() < self._deadline:
            self._handle = self._loop.call_at(self._deadline, self._fired)
            return
        self._deadline = None
        self._expired()
