"""One timer for a run: armed, moved and closed (run/watch.py)."""

from __future__ import annotations

import asyncio

from fencepost.run.watch import Watch


class Times:
    """A loop whose time a test moves; `timers` are those that are not cancelled, earliest first."""

    def __init__(self) -> None:
        self.now = 0.0
        self.set: list[tuple[float, asyncio.TimerHandle]] = []
        self._loop = asyncio.new_event_loop()

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: object) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, (), self._loop)  # type: ignore[arg-type]
        self.set.append((when, handle))
        return handle

    @property
    def timers(self) -> list[float]:
        return sorted(when for when, handle in self.set if not handle.cancelled())

    def advance(self, to: float) -> None:
        self.now = to
        for when, handle in list(self.set):
            if when <= to and not handle.cancelled():
                self.set.remove((when, handle))
                handle._callback()  # type: ignore[attr-defined]

    def close(self) -> None:
        self._loop.close()


def watched() -> tuple[Times, Watch, list[float]]:
    loop, fired = Times(), []
    return loop, Watch(loop, lambda: fired.append(loop.now)), fired  # type: ignore[arg-type]


def test_an_armed_watch_expires_once_at_its_deadline() -> None:
    loop, watch, fired = watched()
    watch.arm(5)
    loop.advance(4)
    assert fired == []
    loop.advance(5)
    loop.advance(50)
    assert fired == [5]
    loop.close()


def test_a_later_deadline_leaves_the_timer_and_is_kept_when_that_fires_too_early() -> None:
    loop, watch, fired = watched()
    watch.arm(5)
    loop.now = 3
    watch.arm(5)
    assert loop.timers == [5]
    loop.advance(5)
    assert (fired, loop.timers) == ([], [8])
    loop.now = 6
    watch.arm(1)
    assert loop.timers == [7]
    loop.advance(7)
    assert fired == [7]
    loop.close()


def test_a_closed_watch_does_not_expire() -> None:
    loop, watch, fired = watched()
    watch.close()
    watch.arm(5)
    watch.close()
    loop.advance(50)
    assert (fired, loop.timers) == ([], [])
    loop.close()
