"""Fake time: sleeps cost nothing, the wall clock goes where it is put, monotonic time only grows."""

from __future__ import annotations

import asyncio

import pytest

from fencepost.ports import Clock
from fencepost.testing.clock import FakeClock


async def test_a_sleep_moves_both_clocks_and_gives_others_a_turn() -> None:
    clock: Clock = FakeClock(start=10.0, wall=1000.0)
    turns: list[str] = []

    async def other() -> None:
        turns.append("other")

    turn = asyncio.create_task(other())
    await clock.sleep(2.5)
    assert turns == ["other"]
    assert clock.monotonic() == 12.5
    assert isinstance(clock, FakeClock)
    assert clock.wall() == 1002.5
    await clock.sleep(0)
    assert clock.monotonic() == 12.5
    await turn


async def test_sleepers_wake_in_the_order_of_their_times_when_time_is_moved_by_hand() -> None:
    clock, woken = FakeClock(start=0.0, jumping=False), []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((seconds, clock.monotonic()))

    tasks = [asyncio.create_task(sleeper(seconds)) for seconds in (3.0, 1.0, 2.0)]
    await asyncio.sleep(0)
    assert clock.sleepers == 3
    clock.advance(2.0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert woken == [(1.0, 2.0), (2.0, 2.0)]
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert clock.sleepers == 0
    clock.advance(5.0)
    assert len(woken) == 2


def test_the_wall_clock_may_go_back_and_monotonic_time_may_not() -> None:
    clock = FakeClock(start=5.0, wall=100.0)
    clock.set_wall(1.0)
    assert (clock.wall(), clock.monotonic()) == (1.0, 5.0)
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(-1.0)
