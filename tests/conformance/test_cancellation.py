"""Rows B, L36 to L40: cancel, from inside and outside, at every point where it can come (contract 7)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fencepost import (
    CallContext,
    FunctionModel,
    Limits,
    ModelFailed,
    ModelRequest,
    Reply,
    StopReason,
    TaskState,
)
from fencepost.core.entries import CallStarted, Replied
from fencepost.models.scripted import call, calls, say
from fencepost.ports import Delta, Sink
from fencepost.run.running import open_task
from fencepost.service import tasks
from fencepost.testing.clock import FakeClock
from tests.conformance.stage import TINY_SECONDS, Stage, forever, held, said, starts

# Two replies with a call, and an answer: k+m+1 = 3+2+1 commits.
COMMITS = 6
LIMITS = Limits(steps=5, grace_seconds=TINY_SECONDS)


def three_steps() -> list[Reply]:
    return [calls(call("act", n=1)), calls(call("act", n=2)), say("done")]


async def test_l36_the_script_has_as_many_commits_as_the_contract_says(stage: Stage) -> None:
    result = await stage.play(three_steps(), stage.act())
    assert (result.reason, stage.store.commits) == (StopReason.COMPLETED, COMMITS)


@pytest.mark.parametrize("point", range(1, COMMITS + 1))
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("near", [True, False], ids=["same-process", "another-process"])
async def test_l36_a_cancel_at_any_commit_closes_the_task_and_nothing_starts_after_it(
    stage: Stage, point: int, side: str, near: bool
) -> None:
    seen: list[Any] = []

    async def cancel(reached: int) -> None:
        if reached == point:
            seen.append(await tasks.cancel(stage.store, "task-1", live=stage.live if near else None))
            seen.append(stage.ran())
            seen.append(starts(await stage.bodies("task-1")))

    setattr(stage.store, side, cancel)
    result = await stage.run(stage.agent(three_steps(), stage.act()), task="task-1")
    row, ran, started = seen
    if (point, side) == (COMMITS, "after"):  # success committed first, and stands
        assert (row.state, result.reason) == (TaskState.SUCCEEDED, StopReason.COMPLETED)
        return
    assert row.state is TaskState.CANCELLED
    assert (result.outcome, result.reason) == ("fenced", StopReason.CANCELLED)
    assert (
        starts([e.body for e in result.entries]) == started
    )  # the cancel's own transaction was the last word
    assert result.entries[-1].by == "local/user"
    if near:
        assert stage.ran() == ran  # nothing starts after it
    else:  # a start that was committed before the cancel may still begin; its commit is refused
        assert len(stage.ran()) <= len(started)
    assert result.entries == await stage.store.entries("local", "task-1")


async def test_l36_a_cancel_just_before_the_model_returns_a_call_runs_nothing(stage: Stage) -> None:
    async def answers(request: ModelRequest) -> Reply:
        await stage.cancel("task-1")
        return calls(call("act", n=1))

    agent = stage.agent([], stage.act(), model=FunctionModel(answers))
    result = await stage.run(agent, task="task-1")
    assert (result.reason, stage.ran()) == (StopReason.CANCELLED, [])
    assert not any(isinstance(e.body, Replied) for e in result.entries)
    assert result.row.tokens > 0  # what was reserved is settled by the stop


@pytest.mark.parametrize("effect", ["read", "idempotent", "write"])
async def test_l36_a_cancel_inside_a_tool_closes_its_call(stage: Stage, effect: str) -> None:
    async def cancels(context: CallContext, n: int) -> str:
        await stage.cancel(context.task)
        return "too late"

    act = stage.act(then=cancels, effect=effect)
    result = await stage.play([calls(call("act", n=1), call("act", n=2))], act, limits=LIMITS)
    assert (result.outcome, result.reason) == ("fenced", StopReason.CANCELLED)
    assert stage.ran() == ["act 1"]
    first = "unknown" if effect == "write" else "cancelled"
    assert said(result) == [(first, "CANCELLED"), ("cancelled", "CANCELLED")]
    assert b"too late" not in b"".join(str(e.body).encode() for e in result.entries)


async def test_l37_a_cancel_in_the_first_of_three_leaves_exactly_one(stage: Stage) -> None:
    begun = asyncio.Event()

    async def waits(context: CallContext, n: int) -> None:
        begun.set()
        await forever()

    act = stage.act(then=waits)
    agent = stage.agent([calls(*(call("act", n=i) for i in range(3)))], act, limits=LIMITS)
    running = asyncio.create_task(stage.run(agent, task="task-1"))
    await held(begun)
    await stage.cancel("task-1")
    result = await running
    assert (result.reason, stage.ran()) == (StopReason.CANCELLED, ["act 0"])
    assert said(result) == [("unknown", "CANCELLED"), ("cancelled", "CANCELLED"), ("cancelled", "CANCELLED")]


async def test_l36_a_cancel_in_the_pause_before_another_attempt_ends_it(stage: Stage) -> None:
    asleep = asyncio.Event()

    class Sleeps(FakeClock):
        async def sleep(self, seconds: float, /) -> None:
            asleep.set()
            await forever()

    clock = Sleeps()
    busy = ModelFailed("busy", kind="status", retriable=True, status=429, retry_after=100)
    agent = stage.agent([busy, say("never")], limits=LIMITS)
    running = asyncio.create_task(stage.run(agent, task="task-1", clock=clock))
    await held(asleep)
    await stage.cancel("task-1")
    result = await running
    assert (result.outcome, result.reason) == ("fenced", StopReason.CANCELLED)
    assert len(stage.models[0].requests) == 1


# --- L38: the caller's own task is cancelled --------------------------------------------------------------


@pytest.mark.parametrize("effect", ["read", "write"])
@pytest.mark.parametrize("parallel", [False, True], ids=["alone", "parallel"])
async def test_l38_an_outer_cancel_in_a_tool_gives_the_task_back_and_is_raised_again(
    stage: Stage, effect: str, parallel: bool
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def waits(context: CallContext, n: int) -> str:
        begun.set()
        await go.wait()
        return "seen"

    act = stage.act(then=waits, effect=effect, parallel=parallel)
    agent = stage.agent([calls(call("act", n=1)), say("done")], act, limits=LIMITS)
    running = asyncio.create_task(stage.run(agent, task="task-1"))
    await held(begun)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    row = await stage.store.row("local", "task-1")
    assert (row.state, row.attempts) == (TaskState.READY_TO_RESUME, 0)
    go.set()
    result = await stage.resume(agent, "task-1")
    if effect == "read":
        assert (result.reason, result.text) == (StopReason.COMPLETED, "done")
        assert stage.ran() == ["act 1", "act 1"]
    else:
        assert (result.outcome, [ask.about for ask in result.asks]) == ("waiting", ["outcome"])
        assert stage.ran() == ["act 1"]


async def test_l38_an_outer_cancel_in_the_model_gives_the_task_back_and_costs_no_attempt(
    stage: Stage,
) -> None:
    begun = asyncio.Event()

    async def answers(request: ModelRequest) -> Reply:
        if not begun.is_set():
            begun.set()
            await forever()
        return say("done")

    agent = stage.agent([], model=FunctionModel(answers), limits=LIMITS)
    running = asyncio.create_task(stage.run(agent, task="task-1"))
    await held(begun)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await stage.store.row("local", "task-1")).state is TaskState.READY_TO_RESUME
    result = await stage.resume(agent, "task-1")
    assert (result.reason, result.text) == (StopReason.COMPLETED, "done")


@pytest.mark.parametrize("point", range(1, COMMITS + 1))
async def test_l38_an_outer_cancel_during_a_commit_waits_for_its_outcome(stage: Stage, point: int) -> None:
    inside, go = asyncio.Event(), asyncio.Event()

    async def hold(reached: int) -> None:
        if reached == point:
            inside.set()
            await held(go)

    stage.store.before = hold
    act = stage.look("act")
    agent = stage.agent(three_steps(), act)
    running = asyncio.create_task(stage.run(agent, task="task-1"))
    await held(inside)
    running.cancel()
    await asyncio.sleep(0)
    assert not running.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    row = await stage.store.row("local", "task-1")
    assert row.state is (TaskState.SUCCEEDED if point == COMMITS else TaskState.READY_TO_RESUME)
    stage.store.before = None
    script = three_steps()[sum(isinstance(b, Replied) for b in await stage.bodies("task-1")) :]
    result = await stage.resume(stage.agent(script, act), "task-1")
    assert result.reason is StopReason.COMPLETED
    assert set(stage.ran()) == {"act 1", "act 2"}


# --- L39, L40 -----------------------------------------------------------------------------------------------


async def test_l39_a_cancel_before_the_start_is_the_end(stage: Stage) -> None:
    agent = stage.agent(three_steps(), stage.act())
    await open_task(agent, "do it", store=stage.store, task="task-1")
    first = await stage.cancel("task-1")
    assert (first.state, first.seq) == (TaskState.CANCELLED, 2)
    result = await stage.resume(agent, "task-1")
    assert (result.outcome, result.reason, stage.ran()) == ("stopped", StopReason.CANCELLED, [])
    assert await stage.cancel("task-1") == first


async def test_l39_a_second_cancel_changes_nothing(stage: Stage) -> None:
    async def twice(context: CallContext, n: int) -> None:
        assert await stage.cancel(context.task) == await stage.cancel(context.task)

    result = await stage.play([calls(call("act", n=1))], stage.act(then=twice), limits=LIMITS)
    assert result.reason is StopReason.CANCELLED
    before = await stage.store.row("local", result.task), await stage.store.entries("local", result.task)
    again = await stage.cancel(result.task)
    assert (again, await stage.store.entries("local", result.task)) == before


async def test_l39_two_cancels_at_once_write_one_end(stage: Stage) -> None:
    agent = stage.agent(three_steps(), stage.act())
    await open_task(agent, "do it", store=stage.store, task="task-1")
    rows = await asyncio.gather(*(stage.cancel("task-1") for _ in range(20)))
    assert len(set(map(repr, rows))) == 1
    assert len(await stage.store.entries("local", "task-1")) == 2


async def test_l39_a_cancel_after_success_answers_with_the_success(stage: Stage) -> None:
    result = await stage.play(three_steps(), stage.act())
    before = await stage.store.row("local", result.task)
    row = await stage.cancel(result.task)
    assert row == before
    assert (row.state, row.reason) == (TaskState.SUCCEEDED, StopReason.COMPLETED)


async def test_l40_a_cancel_in_mid_stream_shows_stores_and_runs_nothing_more(stage: Stage) -> None:
    class Streams:
        profile = FunctionModel(lambda request: say("")).profile

        async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
            assert sink is not None
            sink(Delta("text", "before the cancel"))
            try:
                await stage.cancel("task-1")
                sink(Delta("text", "after the cancel"))
                await forever()
            except asyncio.CancelledError:
                sink(Delta("text", "after the cancel"))
            return calls(call("act", n=1), text="after the cancel")

    agent = stage.agent([], stage.act(), model=Streams(), limits=LIMITS)
    result = await stage.run(agent, task="task-1")
    assert (result.reason, stage.ran()) == (StopReason.CANCELLED, [])
    assert [e.delta.text for e in stage.events if e.delta is not None] == ["before the cancel"]
    kinds = [type(e.body) for e in result.entries]
    assert Replied not in kinds
    assert CallStarted not in kinds
    assert [m for m in result.messages if type(m).__name__ == "AssistantMessage"] == []


async def test_l40_the_deltas_of_a_retried_attempt_stop_when_it_fails(stage: Stage) -> None:
    kept: list[Sink] = []

    class Streams:
        profile = FunctionModel(lambda request: say("")).profile

        async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
            assert sink is not None
            kept.append(sink)
            sink(Delta("text", f"step {request.step}"))
            if request.step == 2:
                kept[0](Delta("text", "from a step that is over"))
                return say("done")
            return calls(call("look", n=1))

    result = await stage.run(stage.agent([], stage.look(), model=Streams()))
    assert result.reason is StopReason.COMPLETED
    kept[1](Delta("text", "from a task that is over"))
    assert [e.delta.text for e in stage.events if e.delta is not None] == ["step 1", "step 2"]
