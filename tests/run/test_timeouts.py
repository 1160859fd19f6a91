"""What is not waited for any longer: models, tools, groups of tools, and the task itself (contract 6)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from fencepost import CallContext, FunctionModel, Limits, ModelFailed, ModelRequest, Reply, StopReason, tool
from fencepost.core.entries import AttemptFailed, CallStarted
from fencepost.models.scripted import call, calls, say
from fencepost.testing import FakeClock
from tests.conformance.stage import Stage, forever, held, said
from tests.run.conftest import contents

TINY = 0.02
QUICK = Limits(steps=5, tool_seconds=TINY, model_seconds=TINY, grace_seconds=TINY)
PATIENT = Limits(steps=5, tool_seconds=TINY, model_seconds=TINY, grace_seconds=20.0)


class Stubborn:
    """A body that does not end when it is cancelled, until it is let go."""

    def __init__(self) -> None:
        self.go, self.gone = asyncio.Event(), asyncio.Event()
        self.cancels = 0

    async def __call__(self, *_: Any) -> str:
        while not self.go.is_set():
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancels += 1
        self.gone.set()
        return "late news"


# --- the model


@pytest.mark.parametrize("obeys", [True, False], ids=["obeys", "swallows"])
async def test_a_model_that_does_not_answer_in_time_ends_the_task_with_llm_timeout(
    stage: Stage, obeys: bool
) -> None:
    stubborn = Stubborn()

    async def slow(_: ModelRequest) -> Reply:
        await (forever() if obeys else stubborn())
        return say("too late")

    result = await stage.run(stage.agent([], model=FunctionModel(slow), limits=QUICK))
    assert result.reason is StopReason.LLM_TIMEOUT
    failed = [e.body for e in result.entries if isinstance(e.body, AttemptFailed)]
    assert [(f.kind, f.detail, f.retry_in) for f in failed] == [("timeout", "no reply within 0.02 s", None)]
    assert failed[0].charged_tokens > 0
    if not obeys:
        stubborn.go.set()
        await held(stubborn.gone)
        assert stubborn.cancels == 1
    assert await stage.store.late("local", result.task) == ()


async def test_the_deadline_of_the_task_is_named_when_it_ends_a_model_call(stage: Stage) -> None:
    limits = Limits(steps=3, task_seconds=TINY, model_seconds=TINY * 5, grace_seconds=TINY)
    result = await stage.run(stage.agent([], model=FunctionModel(forever), limits=limits))
    assert result.reason is StopReason.TASK_TIMEOUT


# --- one tool


@pytest.mark.parametrize("effect", ["read", "idempotent"])
async def test_a_call_that_may_be_repeated_ends_as_timeout_and_the_run_goes_on(
    stage: Stage, effect: str
) -> None:
    act = stage.act(then=forever, effect=effect)
    result = await stage.play([calls(call("act")), say("done")], act, limits=QUICK)
    assert (said(result), result.text) == ([("timeout", "timeout")], "done")
    assert stage.ran() == ["act 0"]


async def test_a_write_that_does_not_end_in_time_has_an_unknown_outcome(stage: Stage) -> None:
    result = await stage.play([calls(call("act"))], stage.act(then=forever), limits=QUICK)
    assert result.outcome == "waiting"
    assert [(ask.about, ask.cause) for ask in result.asks] == [("outcome", "timeout")]


async def test_a_tool_may_have_a_deadline_of_its_own(stage: Stage) -> None:
    look = stage.look(then=forever, timeout=TINY)
    result = await stage.play([calls(call("look")), say("done")], look, limits=Limits(5, grace_seconds=TINY))
    assert said(result) == [("timeout", "timeout")]
    assert "did not end within 0.02 s" in contents(result)[0]


async def test_a_tool_that_swallows_its_cancel_is_left_and_its_end_is_late(stage: Stage) -> None:
    stubborn = Stubborn()
    look, other = stage.look(then=stubborn), stage.look("other")
    script = [calls(call("look")), calls(call("other")), say("done")]
    result = await stage.play(script, look, other, limits=QUICK)
    assert (said(result), result.text) == ([("timeout", "timeout"), ("ok", "")], "done")
    assert await stage.store.late("local", result.task) == ()
    stubborn.go.set()
    late = await stage.late(result.task)
    assert [(r.step, r.position, r.start, r.status, r.content) for r in late] == [
        (1, 0, 1, "ok", "late news")
    ]
    assert stubborn.cancels == 1


async def test_a_tool_that_cleans_up_within_the_grace_period_is_cancelled_once(stage: Stage) -> None:
    tidied: list[str] = []

    async def tidies(*_: Any) -> str:
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            tidied.append("tidied")
        return ""

    script = [calls(call("look")), say("done")]
    result = await stage.play(script, stage.look(then=tidies), limits=PATIENT)
    assert (tidied, said(result)) == (["tidied"], [("timeout", "timeout")])


async def test_several_abandoned_tools_leave_one_run(stage: Stage) -> None:
    stubborn = [Stubborn() for _ in range(3)]

    async def body(_: CallContext, n: int) -> str:
        return await stubborn[n]()

    script = [*(calls(call("look", n=n)) for n in range(3)), say("done")]
    result = await stage.play(script, stage.look(then=body), limits=QUICK)
    assert (said(result), result.text) == ([("timeout", "timeout")] * 3, "done")
    for one in stubborn:
        one.go.set()
        await held(one.gone)


async def test_a_thread_is_left_alone_at_once_and_its_end_is_late(stage: Stage) -> None:
    go = threading.Event()

    @tool(effect="read")
    def look(context: CallContext) -> str:
        """Wait."""
        stage.note("look", context)
        go.wait()
        return "late news"

    script = [calls(call("look")), say("done")]
    result = await stage.play(script, look, limits=PATIENT)
    assert (said(result), result.text) == ([("timeout", "timeout")], "done")
    go.set()
    assert [r.content for r in await stage.late(result.task)] == ["late news"]


# --- tools side by side


@pytest.mark.parametrize("kind", ["obeys", "swallows", "raises another", "returns"])
async def test_one_of_a_group_that_does_not_end_in_time_costs_its_siblings_nothing(
    stage: Stage, kind: str
) -> None:
    stubborn = Stubborn()

    async def slow(_: CallContext, n: int) -> str:
        if n == 0:
            return "quick"
        try:
            await (stubborn() if kind == "swallows" else forever())
        except asyncio.CancelledError:
            if kind == "raises another":
                raise asyncio.CancelledError from None
            if kind == "returns":
                return "late news"
            raise
        return "late news"

    look = stage.look(then=slow, parallel=True)
    limits = QUICK if kind == "swallows" else PATIENT
    result = await stage.play([calls(call("look", n=1), call("look", n=0)), say("done")], look, limits=limits)
    assert (said(result), result.text) == ([("timeout", "timeout"), ("ok", "")], "done")
    starts = [e.body.start for e in result.entries if isinstance(e.body, CallStarted)]
    assert starts == [1, 1]
    stubborn.go.set()
    if kind in ("swallows", "returns"):
        assert [r.content for r in await stage.late(result.task)] == ["late news"]
    else:
        assert await stage.store.late("local", result.task) == ()


async def test_the_deadline_of_the_task_ends_a_group_and_closes_all_of_it(stage: Stage) -> None:
    limits = Limits(steps=3, task_seconds=TINY, tool_seconds=20.0, grace_seconds=20.0)
    look = stage.look(then=forever, parallel=True)
    result = await stage.play([calls(call("look", n=1), call("look", n=2))], look, limits=limits)
    assert result.reason is StopReason.TASK_TIMEOUT
    assert said(result) == [("timeout", "timeout")] * 2


async def test_a_group_that_is_cancelled_by_the_end_of_time_is_cancelled_once(stage: Stage) -> None:
    cancels: list[int] = []

    async def tidies(_: CallContext, n: int) -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            cancels.append(n)
            for _turn in range(20):  # long enough for the loop to look again
                await asyncio.sleep(0)
            raise
        return ""

    limits = Limits(steps=3, task_seconds=TINY, tool_seconds=20.0, grace_seconds=20.0)
    look = stage.look(then=tidies, parallel=True)
    result = await stage.play([calls(*(call("look", n=n) for n in range(3)))], look, limits=limits)
    assert result.reason is StopReason.TASK_TIMEOUT
    assert sorted(cancels) == [0, 1, 2]


# --- the task


async def test_a_pause_that_is_longer_than_the_time_left_is_not_waited_for(
    stage: Stage, clock: FakeClock
) -> None:
    busy = ModelFailed("busy", kind="status", status=429, retriable=True, retry_after=1e18)
    result = await stage.play([busy], options={"clock": clock})
    assert result.reason is StopReason.TASK_TIMEOUT
    failed = [e.body for e in result.entries if isinstance(e.body, AttemptFailed)]
    assert [f.retry_in for f in failed] == [1e15]


async def test_time_is_up_between_two_calls_and_the_second_does_not_start(
    stage: Stage, clock: FakeClock
) -> None:
    async def slow(*_: Any) -> str:
        clock.advance(1000)
        return "slow"

    script = [calls(call("act", n=1), call("act", n=2))]
    result = await stage.play(script, stage.act(then=slow), options={"clock": clock})
    assert result.reason is StopReason.TASK_TIMEOUT
    assert said(result) == [("ok", ""), ("not_executed", "TASK_TIMEOUT")]
    assert stage.ran() == ["act 1"]
