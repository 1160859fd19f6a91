"""Rows E, L71 and L72: what watchers are told, once and of the newest run only (contract 1)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fencepost import (
    CallContext,
    DefinitionInvalid,
    Event,
    FunctionModel,
    Limits,
    ModelProfile,
    ModelRequest,
    Reply,
    StopReason,
    TaskNotFound,
)
from fencepost.core.errors import TaskConflict
from fencepost.models.scripted import call, calls, say
from fencepost.ports import Delta, Sink
from fencepost.run.live import TERMINAL_KINDS
from tests.conformance.stage import TINY_SECONDS, Crash, Stage, crash_at, forever, held


def told(stage: Stage) -> list[str]:
    """The kinds of the events so far."""
    return [event.kind for event in stage.events]


# --- L71: a start and one end, whatever happens ---


@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ({"limits": Limits(steps=0)}, "do it"),
        ({"limits": Limits(steps=1, tokens=-5)}, "do it"),
        ({"answer": "both"}, "do it"),
        ({}, "  "),
        ({}, "half a \ud800 pair"),
    ],
    ids=["no-steps", "no-tokens", "unknown-answer", "no-prompt", "bad-prompt"],
)
async def test_l71_a_run_that_is_refused_at_once_tells_its_start_and_its_end(
    stage: Stage, options: dict[str, Any], prompt: str
) -> None:
    agent = stage.agent([say("never")], stage.act(), **options)
    with pytest.raises(DefinitionInvalid) as refused:
        await stage.run(agent, prompt)
    assert told(stage) == ["start", "refused"]
    assert stage.events[-1].detail == str(refused.value)
    assert await stage.store.tasks("local") == ()


async def test_l71_an_unknown_price_is_told_as_an_ordinary_end(stage: Stage) -> None:
    limits = Limits(steps=5, cost_nano=1000)
    result = await stage.play([say("never")], limits=limits, profile=ModelProfile("unpriced"))
    assert result.reason is StopReason.UNKNOWN_PRICE
    assert told(stage) == ["start", "entry", "stopped"]
    assert stage.models[0].requests == []


async def test_l71_a_resume_that_cannot_be_tells_its_start_and_its_end(stage: Stage) -> None:
    agent = stage.agent([calls(call("act")), say("done")], stage.act())
    with pytest.raises(TaskNotFound):
        await stage.resume(agent, "task-0")
    assert told(stage) == ["start", "refused"]
    stage.store.after = crash_at(1)
    with pytest.raises(Crash):
        await stage.run(agent, task="task-1")
    assert told(stage)[-1] == "failed"
    with pytest.raises(TaskConflict):  # somebody still holds the lease
        await stage.resume(agent, "task-1")
    with pytest.raises(DefinitionInvalid):
        await stage.resume(stage.agent([]), "task-1")
    assert told(stage)[-4:] == ["start", "refused", "start", "refused"]


async def test_l71_every_way_to_end_is_told_once_and_last(stage: Stage) -> None:
    begun = asyncio.Event()

    async def waits(context: CallContext, n: int) -> None:
        begun.set()
        await forever()

    limits = Limits(steps=5, grace_seconds=TINY_SECONDS)
    slow = stage.agent([calls(call("look"))], stage.look(then=waits), limits=limits)
    for end in ("released", "fenced"):
        begun.clear()
        running = asyncio.create_task(stage.run(slow, task=f"task-{end}"))
        await held(begun)
        if end == "released":
            running.cancel()
        else:
            await stage.cancel(f"task-{end}")
        await asyncio.gather(running, return_exceptions=True)
        kinds = [e.kind for e in stage.events if e.task == f"task-{end}"]
        assert kinds[0] == "start"
        assert [k for k in kinds if k in TERMINAL_KINDS] == [end]
        assert kinds[-1] == end
        slow = stage.agent([calls(call("look"))], stage.look(then=waits), limits=limits)


async def test_l71_a_model_that_fails_to_be_one_is_an_ordinary_failure(stage: Stage) -> None:
    def nonsense(request: ModelRequest) -> Any:
        return "not a reply"

    result = await stage.run(stage.agent([], model=FunctionModel(nonsense)))
    assert result.reason is StopReason.LLM_ERROR
    assert told(stage)[-1] == "stopped"


# --- L72: nobody hears a run that was fenced ---


async def test_l72_what_an_older_epoch_says_is_dropped(stage: Stage) -> None:
    kept: list[Sink] = []
    begun, go = asyncio.Event(), asyncio.Event()

    class Talks:
        profile = ModelProfile("talks", input_nano=0, output_nano=0)

        def __init__(self, name: str) -> None:
            self.name = name

        async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
            assert sink is not None
            kept.append(sink)
            sink(Delta("text", f"{self.name} begins"))
            if self.name == "old":
                begun.set()
                await held(go)
                sink(Delta("text", "old goes on"))
            return say("done")

    old = asyncio.create_task(stage.run(stage.agent([], model=Talks("old")), task="task-1"))
    await held(begun)
    new = await stage.resume(stage.agent([], model=Talks("new")), "task-1", take_over=True)
    assert new.reason is StopReason.COMPLETED
    go.set()
    assert (await old).outcome == "fenced"
    kept[0](Delta("text", "old once more"))
    shown = [e.delta.text for e in stage.events if e.delta is not None]
    assert shown == ["old begins", "new begins"]
    epochs = [event.epoch for event in stage.events]
    assert epochs == sorted(epochs)
    assert [e.epoch for e in stage.events if e.entry is not None] == [1, 2, 2, 2, 2]


async def test_l72_the_bus_drops_what_is_older_than_the_newest_epoch_it_knows(stage: Stage) -> None:
    stage.live.advance("local", "task-1", 2)
    for tenant, task, epoch in (
        ("local", "task-1", 1),
        ("local", "task-1", 2),
        ("other", "task-1", 1),
        ("local", "task-2", 1),
    ):
        stage.live.publish(Event("delta", tenant, task, epoch))
    shown = [(e.tenant, e.task, e.epoch) for e in stage.events]
    assert shown == [("local", "task-1", 2), ("other", "task-1", 1), ("local", "task-2", 1)]


async def test_l72_a_watcher_hears_only_of_committed_entries(stage: Stage) -> None:
    result = await stage.play([calls(call("act", n=1)), say("done")], stage.act())
    assert [e.entry for e in stage.events if e.entry is not None] == [e.body for e in result.entries[1:]]


async def test_l72_a_watcher_that_fails_stops_no_task_and_is_reported(stage: Stage) -> None:
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, said: reported.append(said["exception"]))

    def fails(event: Event) -> None:
        raise ValueError(f"no {event.kind}")

    stop = stage.live.listen(fails)
    result = await stage.play([calls(call("act", n=1)), say("done")], stage.act())
    stop()
    assert (result.reason, stage.ran()) == (StopReason.COMPLETED, ["act 1"])
    assert len(reported) == len(stage.events)
    assert str(reported[0]) == "no start"


async def test_l72_a_fence_that_comes_late_leaves_the_newer_run_alone(stage: Stage) -> None:
    async def late_fence(context: CallContext, n: int) -> str:
        stage.live.fence(context.tenant, context.task, 1)
        return "still ours"

    script = [calls(call("act", n=1)), say("done")]
    result = await stage.play(script, stage.act(then=late_fence))
    assert (result.outcome, result.reason) == ("stopped", StopReason.COMPLETED)


async def test_l72_an_entry_whose_commit_failed_is_not_told(stage: Stage) -> None:
    stage.store.before = crash_at(2)
    agent = stage.agent([calls(call("act", n=1)), say("done")], stage.act())
    with pytest.raises(Crash):
        await stage.run(agent, task="task-1")
    assert [type(e.entry).__name__ for e in stage.events if e.entry is not None] == ["ModelAsked"]
