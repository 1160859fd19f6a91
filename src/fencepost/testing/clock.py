"""Time that a test moves: no test ever waits for a real second.

Rule: `monotonic` never goes back, `wall` may be set to anything, as clocks of machines are.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools

# A round number in 2027; nothing depends on it.
WALL_START = 1_800_000_000.0


class FakeClock:
    """A Clock whose sleeps take no real time, and a wall clock for stores (`now=clock.wall`).

    With `jumping` (the default) a sleep moves the time forward by itself; without it a sleeper waits until
    `advance` has reached its time, and sleepers wake in the order of their times.
    """

    def __init__(self, *, start: float = 1000.0, wall: float = WALL_START, jumping: bool = True) -> None:
        self._monotonic, self._wall, self._jumping = start, wall, jumping
        self._numbers = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        """Seconds that only grow."""
        return self._monotonic

    def wall(self) -> float:
        """Seconds since 1970, as set."""
        return self._wall

    async def sleep(self, seconds: float, /) -> None:
        """Return when so much of this clock's time has passed; other tasks get a turn in any case."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        if self._jumping:
            self.advance(seconds)
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._monotonic + seconds, next(self._numbers), woken))
        await woken

    def advance(self, seconds: float) -> None:
        """Both clocks are so many seconds later, and whoever slept until then is awake."""
        if seconds < 0:
            raise ValueError(f"monotonic time never goes back; use set_wall, not advance({seconds})")
        self._monotonic += seconds
        self._wall += seconds
        while self._sleepers and self._sleepers[0][0] <= self._monotonic:
            woken = heapq.heappop(self._sleepers)[2]
            if not woken.done():
                woken.set_result(None)

    def set_wall(self, seconds: float) -> None:
        """The wall clock shows this time, earlier or later; monotonic time does not move."""
        self._wall = seconds

    @property
    def sleepers(self) -> int:
        """How many are still asleep."""
        return sum(not woken.done() for _, _, woken in self._sleepers)
