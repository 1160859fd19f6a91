"""The real clock; tests use `fencepost.testing.FakeClock`."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Seconds of this machine."""

    # Seconds that never go back; the function itself, because a run asks several times a step.
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float, /) -> None:
        """Return after so many seconds."""
        await asyncio.sleep(seconds)
