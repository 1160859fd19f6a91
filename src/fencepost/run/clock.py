"""The real clock; tests use `fencepost.testing.FakeClock`."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Seconds of this machine."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    async def sleep(self, seconds: float, /) -> None:
        """Return after so many seconds."""
        await asyncio.sleep(seconds)
