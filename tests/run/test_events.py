"""What watchers are told: the start first, one end last, nothing of an older epoch (contract 1)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fencepost import (
    DefinitionInvalid,
    Event,
    Limits,
    Live,
    ModelFailed,
    ModelRequest,
    Reply,
    StoreFailed,
    TaskState,
)
from fencepost.core.messages import ModelProfile
from fencepost.models.scripted import call, calls, say, streamed
from fencepost.ports import Delta, Lease, Sink
from fencepost.run import live as live_module
from fencepost.run import running
from fencepost.run.live import TERMINAL_KINDS
from fencepost.testing import Crashed, Pauses, Place
from fencepost.testing.pauses import crash
from tests.conformance.stage import Says, Stage, forever, held
from tests.run.conftest import Switch


def event(kind: str = "entry", *, epoch: int = 1, task: str = "t") -> Event:
    return Event(kind, "local", task, epoch)


# --- the bus


def test_a_bus_tells_every_listener_until_it_stops() -> None:
    first: list[Event] = []
    second: list[Event] = []
    bus = Live()
    stop = bus.listen(first.append)
    bus.listen(second.append)
    bus.publish(event())
    stop()
    stop()
    bus.publish(event())
    assert (len(first), len(second), bus.listening) == (1, 2, True)


def test_events_of_an_older_epoch_are_dropped_for_that_task_only() -> None:
    heard: list[Event] = []
    bus = Live()
    bus.listen(heard.append)
    bus.advance("local", "t", 3)
    bus.advance("local", "t", 2)
    for epoch in (2, 3, 4):
        bus.publish(event(epoch=epoch))
    bus.publish(event(epoch=1, task="u"))
    assert [(e.task, e.epoch) for e in heard] == [("t", 3), ("t", 4), ("u", 1)]
    assert bus.newest("local", "t") == 3
    assert bus.newest("local", "nobody") == 0


def test_a_bus_remembers_a_bounded_number_of_epochs() -> None:
    bus = Live()
    for number in range(live_module.EPOCHS_KEPT + 1):
        bus.advance("local", f"t{number}", 5)
    assert bus.newest("local", "t0") == 0
    assert bus.newest("local", "t1") == 5


def test_a_fence_tells_the_run_of_that_task_and_no_other() -> None:
    class Running:
        lease = Lease("local", "t", 2, 1, "worker", None)

        def __init__(self) -> None:
            self.told = 0

        def fenced(self) -> None:
            self.told += 1

    bus, run = Live(), Running()
    bus.running["local", "t"] = run
    bus.fence("local", "u", 3)
    bus.fence("local", "t", 2)  # its own epoch: it claimed the task since
    assert run.told == 0
    bus.fence("local", "t", 3)
    assert (run.told, bus.newest("local", "t")) == (1, 3)


async def test_a_listener_that_raises_stops_neither_the_task_nor_another_listener(stage: Stage) -> None:
    heard: list[Event] = []
    reported: list[dict[str, Any]] = []

    def breaks(_: Event) -> None:
        raise ValueError("a broken watcher")

    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    stage.live.listen(breaks)
    stage.live.listen(heard.append)
    result = await stage.play([calls(call("look")), say("done")], stage.look())
    asyncio.get_running_loop().set_exception_handler(None)
    assert result.text == "done"
    assert heard[-1].kind == "stopped"
    assert {str(context["exception"]) for context in reported} == {"a broken watcher"}
    assert len(reported) == len(heard)


# --- a run, on every path


async def test_a_run_tells_its_start_its_entries_and_its_end(stage: Stage) -> None:
    result = await stage.play([calls(call("look")), say("done")], stage.look(), options={"task": "t"})
    kinds = [e.kind for e in stage.events if e.kind != "delta"]
    assert kinds == ["start", *["entry"] * (len(result.entries) - 1), "stopped"]
    told = [e.entry for e in stage.events if e.kind == "entry"]
    assert told == [e.body for e in result.entries][1:]
    last = stage.events[-1]
    assert (last.detail, last.state, last.totals and last.totals.steps) == (
        "COMPLETED",
        TaskState.SUCCEEDED,
        2,
    )


async def test_nothing_is_built_for_nobody(stage: Stage) -> None:
    heard: list[Any] = []

    class Quiet:
        profile = ModelProfile("quiet", input_nano=0, output_nano=0)

        async def reply(self, _: ModelRequest, sink: Sink | None, /) -> Reply:
            heard.append(sink)
            return say("done")

    result = await running.run(stage.agent([], model=Quiet()), "do it", store=stage.store, live=Live())
    assert (result.text, heard) == ("done", [None])


@pytest.mark.parametrize("path", ["stopped", "waiting", "released", "fenced", "refused", "failed", "over"])
async def test_every_path_tells_one_start_first_and_one_end_last(
    stage: Stage, switch: Switch, path: str
) -> None:
    begun = asyncio.Event()

    async def waits(*_: Any) -> None:
        begun.set()
        await forever()

    tools = (stage.look(then=waits) if path in ("released", "fenced") else stage.look(),)
    script = [calls(call("look")), say("done")]
    if path in ("refused", "failed"):
        script = []
    boundary = Says(look="ask") if path == "waiting" else None
    limits = Limits(steps=0 if path == "refused" else 5, grace_seconds=1.0)
    agent = stage.agent(script, *tools, boundary=boundary, limits=limits)
    if path == "failed":
        switch.hooks = Pauses(Place("append.before", 1), crash)
    caller = asyncio.create_task(stage.run(agent, task="t"))
    if path in ("released", "fenced"):
        await held(begun)
        if path == "released":
            caller.cancel()
        else:
            await stage.cancel("t")
    await asyncio.wait([caller])
    if not caller.cancelled() and (why := caller.exception()) is not None:
        assert isinstance(why, (DefinitionInvalid, Crashed))
    if path == "over":
        stage.events.clear()
        stage._runs = 1
        assert (await stage.resume(agent, "t")).text == "done"
        stage._runs = 1
    kinds = [e.kind for e in stage.events]
    assert kinds[0] == "start"
    assert [kind for kind in kinds if kind in TERMINAL_KINDS] == ["stopped" if path == "over" else path]
    assert kinds[-1] in TERMINAL_KINDS
    stage.models.clear()


@pytest.mark.parametrize("reads", [1, 2])
async def test_a_store_that_cannot_be_read_at_the_end_still_gets_its_one_end_told(
    stage: Stage, reads: int
) -> None:
    class Unreadable:
        def __init__(self, store: Any) -> None:
            self._store, self.reads = store, 0

        async def row(self, *given: Any, **named: Any) -> Any:
            self.reads += 1
            if self.reads >= reads:
                raise StoreFailed("cannot be read")
            return await self._store.row(*given, **named)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

    kept = stage.store
    agent = stage.agent([say("done")])
    stage.store = Unreadable(kept)
    if reads == 1:
        with pytest.raises(StoreFailed):
            await stage.run(agent, task="t")
        assert [e.kind for e in stage.events if e.kind in TERMINAL_KINDS] == ["failed"]
    else:
        assert (await stage.run(agent, task="t")).text == "done"
        with pytest.raises(StoreFailed):
            await stage.resume(agent, "t")
        assert [e.kind for e in stage.events if e.kind in TERMINAL_KINDS] == ["stopped", "refused"]
    stage.store = kept


async def test_the_end_of_a_fenced_run_is_told_although_its_epoch_is_over(stage: Stage) -> None:
    begun = asyncio.Event()

    async def waits(*_: Any) -> None:
        begun.set()
        await forever()

    agent = stage.agent([calls(call("look"))], stage.look(then=waits))
    caller = asyncio.create_task(stage.run(agent, task="t"))
    await held(begun)
    row = await stage.cancel("t")
    assert (await caller).outcome == "fenced"
    assert (stage.events[-1].kind, stage.events[-1].epoch) == ("fenced", row.epoch)


# --- deltas


async def test_deltas_of_the_step_in_progress_are_told(stage: Stage) -> None:
    await stage.play([say("hello there, you")])
    deltas = [e.delta for e in stage.events if e.kind == "delta" and e.delta is not None]
    assert "".join(d.text for d in deltas) == "hello there, you"


@pytest.mark.parametrize("by", ["a cancel", "the next step", "another attempt"])
async def test_no_delta_is_told_after_its_attempt_is_over(stage: Stage, by: str) -> None:
    sinks: list[Sink] = []
    begun = asyncio.Event()

    class Talkative:
        profile = ModelProfile("talkative", input_nano=0, output_nano=0)

        async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
            assert sink is not None
            sinks.append(sink)
            sink(Delta("text", f"{request.step}.{request.attempt}"))
            if by == "a cancel":
                begun.set()
                await forever()
            if by == "another attempt" and request.attempt == 1:
                raise ModelFailed("cut", kind="incomplete", retriable=True, retry_after=0)
            sinks[0](Delta("text", "echo"))
            return calls(call("look")) if request.step == 1 and by == "the next step" else say("done")

    agent = stage.agent([], stage.look(), model=Talkative())
    caller = asyncio.create_task(stage.run(agent, task="t"))
    if by == "a cancel":
        await held(begun)
        await stage.cancel("t")
        sinks[0](Delta("text", "echo"))
    await caller
    sinks[0](Delta("text", "long after"))
    texts = [e.delta.text for e in stage.events if e.delta is not None]
    expected = {
        "a cancel": ["1.1"],
        "the next step": ["1.1", "echo", "2.1"],
        "another attempt": ["1.1", "1.2"],
    }
    assert texts == expected[by]


def test_a_streamed_reply_is_the_reply() -> None:
    heard: list[Delta] = []
    assert streamed(say("words"), heard.append) == say("words")
