"""One run of foreign code at a time, under a deadline, and what came of it as a value.

Rule 1: nothing a subject raises ends the suite; only Ctrl-C does.
Rule 2: what does not end is left, as the loop would leave it, and `abandoned` counts it.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fencepost.core.errors import DefinitionInvalid
from fencepost.run.foreign import describe
from fencepost.testing.conformance.watching import Left

# A subject is cancelled this long after it began, when its arguments are said to take long. Seconds.
INTO_SECONDS = 0.05

Probe = Callable[[], Any]


class Came(Struct, frozen=True):
    """What one run brought: its value, or what it raised; `seconds` is how long it took."""

    seconds: float
    value: Any = None
    raised: BaseException | None = None

    @property
    def cancelled(self) -> bool:
        """Whether it ended with its own cancellation."""
        return isinstance(self.raised, asyncio.CancelledError)


class Runs:
    """Runs foreign code; `abandoned` is how many runs did not end when they should have."""

    def __init__(self, grace_seconds: float) -> None:
        self.grace_seconds = grace_seconds
        self._abandoned: list[asyncio.Task[Came]] = []

    @property
    def abandoned(self) -> int:
        """How many runs were left, still going on."""
        return sum(not task.done() for task in self._abandoned)

    async def left(self) -> Left:
        """What goes on now beside the runs that were left, after the loop has had a turn."""
        await asyncio.sleep(0)
        return replace(now := Left.now(), tasks=now.tasks.difference(self._abandoned))

    async def whole(self, begin: Callable[[], Awaitable[Any]], *, seconds: float) -> Came | None:
        """Run to the end; None when it took longer than `seconds` and then did not end in the grace either."""
        task = asyncio.create_task(_caught(begin))
        done, _ = await asyncio.wait({task}, timeout=seconds)
        return task.result() if done else await self._stopped(task)

    async def cancelled(
        self, begin: Callable[[], Awaitable[Any]], *, after: float
    ) -> tuple[bool, Came | None]:
        """Run, and cancel `after` so many seconds, 0 being its first await.

        Returns whether there was something to cancel, and what it ended with: None when it went on for longer
        than the grace.
        """
        task = asyncio.create_task(_caught(begin))
        if after > 0:
            await asyncio.wait({task}, timeout=after)
        else:
            await asyncio.sleep(0)  # lets it run up to its first await
        if task.done():
            return False, task.result()
        return True, await self._stopped(task)

    async def _stopped(self, task: asyncio.Task[Came]) -> Came | None:
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=self.grace_seconds)
        if done:
            return task.result()
        self._abandoned.append(task)
        return None


async def _caught(begin: Callable[[], Awaitable[Any]]) -> Came:
    began = time.monotonic()
    try:
        value = await begin()
    except KeyboardInterrupt:
        raise
    except BaseException as why:  # noqa: BLE001 - foreign code, and what it raises is what is asked about
        return Came(time.monotonic() - began, raised=why)
    return Came(time.monotonic() - began, value)


async def seen(probe: Probe) -> Any:
    """What the user's probe says of the world now; it may be async. Raises DefinitionInvalid when it fails."""
    try:
        found = probe()
        return await found if inspect.isawaitable(found) else found
    except Exception as why:
        raise DefinitionInvalid(f"the probe failed with {describe(why)}; mend it, and check again") from why


def is_a(value: object, kind: type) -> bool:
    """Whether foreign code gave what its types promise, which no type checker can know."""
    return isinstance(value, kind)
