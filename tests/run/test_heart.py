"""Heartbeats off the event loop, and the local lease (contract 7.2, 7.6)."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from fencepost import Limits, StopReason, StoreFailed, TaskState
from fencepost.models.scripted import call, calls, say
from fencepost.ports import Beat
from fencepost.run import heart as heart_module
from fencepost.run.clock import SystemClock
from fencepost.testing import FakeClock, Pauses, Place
from tests.conformance.stage import Stage, forever, said
from tests.run.conftest import Switch

LEASE_SECONDS = 0.15


class Pulse:
    """A store that notes the beats and may answer them otherwise; `beaten` is set at the n-th."""

    def __init__(self, store: Any, wanted: int = 3) -> None:
        self._store, self._wanted = store, wanted
        self.beats: list[Beat] = []
        self.beaten = threading.Event()
        self.fails = 0
        self.thread: threading.Thread | None = None

    def beat(self, beats: Any, *, lease_seconds: float) -> Any:
        self.thread = threading.current_thread()
        self.beats += beats
        if len(self.beats) >= self._wanted:
            self.beaten.set()
        if self.fails:
            self.fails -= 1
            raise StoreFailed("the disk is busy")
        return self._store.beat(beats, lease_seconds=lease_seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_a_tool_that_blocks_the_loop_does_not_lose_its_lease(stage: Stage, clock: FakeClock) -> None:
    pulse = Pulse(stage.store)
    stage.store = pulse

    def blocks(*_: Any) -> str:
        assert pulse.beaten.wait(20)  # the loop stands still here, and the heart does not
        return "blocked"

    options = {"lease_seconds": LEASE_SECONDS, "task": "t"}
    result = await stage.play([calls(call("look")), say("done")], stage.look(then=blocks), options=options)
    assert (said(result), result.text) == ([("ok", "")], "done")
    assert {(b.task, b.epoch) for b in pulse.beats} == {("t", 1)}
    assert [b.seconds for b in pulse.beats] == sorted(b.seconds for b in pulse.beats)
    assert pulse.thread is not None
    assert not pulse.thread.is_alive()


async def test_the_loop_does_not_wait_for_a_beat_that_waits_for_another_process(stage: Stage) -> None:
    waits, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    class Locked(Pulse):
        def beat(self, beats: Any, *, lease_seconds: float) -> Any:
            self.thread = threading.current_thread()
            loop.call_soon_threadsafe(waits.set)
            assert go_on.wait(20)
            return super().beat(beats, lease_seconds=lease_seconds)

    stage.store = locked = Locked(stage.store)

    async def until_the_heart_waits(*_: Any) -> str:
        await waits.wait()
        return "seen"

    look = stage.look(then=until_the_heart_waits)
    result = await stage.play([calls(call("look")), say("done")], look, options={"lease_seconds": 1.5})
    assert (result.text, locked.beats) == ("done", [])
    go_on.set()
    assert locked.thread is not None
    await asyncio.to_thread(locked.thread.join, 20)
    assert not locked.thread.is_alive()


async def test_a_beat_that_fails_is_made_again(stage: Stage) -> None:
    pulse = Pulse(stage.store, wanted=3)
    pulse.fails = 2
    stage.store = pulse

    def blocks(*_: Any) -> str:
        assert pulse.beaten.wait(20)
        return "blocked"

    options = {"lease_seconds": 10 * LEASE_SECONDS}
    result = await stage.play([calls(call("look")), say("done")], stage.look(then=blocks), options=options)
    assert (result.text, pulse.fails) == ("done", 0)


@pytest.mark.parametrize("parallel", [False, True], ids=["alone", "parallel"])
async def test_a_run_whose_beat_is_refused_stops_at_once(stage: Stage, parallel: bool) -> None:
    async def robbed(*_: Any) -> None:
        await stage.store.claim("thief", lease_seconds=None, tenant="local", task="t", take_over=True)
        await forever()

    look = stage.look(then=robbed, parallel=parallel)
    agent = stage.agent([calls(call("look"))], look, limits=Limits(3, grace_seconds=20.0))
    result = await stage.run(agent, task="t", lease_seconds=LEASE_SECONDS)
    assert (result.outcome, result.state, said(result)) == ("fenced", TaskState.RUNNING, [])
    row = await stage.cancel("t")
    assert row.reason is StopReason.CANCELLED


@pytest.mark.parametrize("before", ["a call", "the model"])
async def test_nothing_starts_when_the_local_lease_is_over(
    stage: Stage, clock: FakeClock, switch: Switch, before: str
) -> None:
    # The time that a commit takes uses the lease up: the body after it must not begin.
    number = 2 if before == "a call" else 1
    switch.hooks = Pauses(Place("append.inside", number), lambda: clock.advance(61))
    agent = stage.agent([calls(call("look"))], stage.look())
    result = await stage.run(agent, task="t", lease_seconds=60.0, clock=clock)
    switch.hooks = None
    assert (result.outcome, stage.ran()) == ("fenced", [])
    if before == "the model":
        assert stage.models[0].requests == []
        stage.models.clear()
    await stage.cancel("t")


async def test_the_local_lease_counts_from_before_the_claim(
    stage: Stage, clock: FakeClock, switch: Switch
) -> None:
    switch.hooks = Pauses(Place("claim.after", 1), lambda: clock.advance(61))
    agent = stage.agent([say("done")])
    result = await stage.run(agent, task="t", lease_seconds=60.0, clock=clock)
    switch.hooks = None
    assert (result.outcome, stage.models[0].requests) == ("fenced", [])
    stage.models.clear()
    await stage.cancel("t")


async def test_a_refusal_that_comes_when_the_loop_is_gone_is_nobodys_business() -> None:
    class Refuses:
        def __init__(self) -> None:
            self.asked = threading.Event()

        def beat(self, *_: Any, **__: Any) -> frozenset[tuple[str, int]]:
            self.asked.set()
            return frozenset({("t", 1)})

    class Run:
        tenant, task = "local", "t"
        lease_until = None

        def __init__(self) -> None:
            self.lease = type("L", (), {"epoch": 1})

        def seconds(self) -> float:
            return 0.0

        def fenced(self) -> None:
            raise AssertionError("the loop is closed")

    hearts: list[heart_module.Heart] = []
    store = Refuses()

    async def begins() -> None:
        hearts.append(heart_module.Heart(store, Run(), FakeClock(), 0.06))  # type: ignore[arg-type]

    def elsewhere() -> None:
        asyncio.run(begins())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert store.asked.wait(20)
    hearts[0].stop()


async def test_the_real_clock_does_not_go_back_and_sleeps() -> None:
    clock = SystemClock()
    began = clock.monotonic()
    await clock.sleep(0.001)
    assert time.monotonic() >= clock.monotonic() - 1
    assert clock.monotonic() > began
