"""Models around a model: each is a Model, and a run cannot tell (models/wrappers.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fencepost.core.entries import AttemptFailed, CallEnded
from fencepost.core.errors import ModelFailed
from fencepost.core.lifecycle import StopReason
from fencepost.core.limits import Limits
from fencepost.core.messages import Finish, ModelProfile, ModelRequest, Reply, Usage, UserMessage
from fencepost.models.function import FunctionModel
from fencepost.models.scripted import ScriptedModel, call, calls, say
from fencepost.models.wrappers import Fault, FaultyModel, Meter, MeteredModel, TimeoutModel
from fencepost.ports import Delta, Model
from fencepost.run.agent import Agent
from fencepost.run.running import Result, run
from fencepost.stores.memory import MemoryStore
from fencepost.tools.function import tool

REQUEST = ModelRequest("", (UserMessage("hello"),), (), 1, 1, 10.0, 100)
PRICED = ModelProfile("priced", input_nano=3, output_nano=7)


@tool(effect="read")
async def look(at: str = "it") -> str:
    """What is there."""
    return f"saw {at}"


async def ran(model: Model, **limits: Any) -> Result:
    agent = Agent("a", model, Limits(5, **limits), tools=(look,))
    return await run(agent, "look", store=MemoryStore(), task="t")


async def never(_: ModelRequest) -> Reply:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("a future that nobody settles was settled")


def test_every_wrapper_is_a_model_with_the_profile_behind_it() -> None:
    inner = ScriptedModel([], profile=PRICED)
    for model in (MeteredModel(inner), TimeoutModel(inner, seconds=1), FaultyModel(inner, faults={})):
        assert isinstance(model, Model)
        assert model.profile is PRICED


async def test_wrappers_around_wrappers_end_a_run_as_the_model_alone_does() -> None:
    def script() -> ScriptedModel:
        return ScriptedModel([calls(call("look", id="c1")), say("done")])

    alone = await ran(script())
    wrapped = await ran(MeteredModel(TimeoutModel(FaultyModel(script(), faults={}), seconds=5)))
    assert [e.body for e in wrapped.entries][1:] == [e.body for e in alone.entries][1:]
    assert wrapped.reason is StopReason.COMPLETED


async def test_deltas_pass_through_every_wrapper() -> None:
    heard: list[Delta] = []
    model = MeteredModel(TimeoutModel(FaultyModel(ScriptedModel(["hello there"]), faults={}), seconds=5))
    reply = await model.reply(REQUEST, heard.append)
    assert "".join(delta.text for delta in heard) == reply.text == "hello there"


# --- the meter


async def test_a_meter_adds_up_calls_tokens_and_the_price_of_the_profile() -> None:
    model = MeteredModel(ScriptedModel(["a", "b"], profile=PRICED))
    for _ in range(2):
        await model.reply(REQUEST, None)
    assert model.meter == Meter(2, 0, input_tokens=20, output_tokens=10, cost_nano=2 * (10 * 3 + 5 * 7))


async def test_a_meter_takes_the_cost_the_provider_reported_before_the_price_list() -> None:
    model = MeteredModel(ScriptedModel([say("a", usage=Usage(10, 5, cost_nano=1))], profile=PRICED))
    await model.reply(REQUEST, None)
    assert model.meter.cost_nano == 1


@pytest.mark.parametrize(
    ("usage", "profile", "expected"),
    [
        (None, PRICED, (None, None, None)),
        (Usage(10, None), PRICED, (20, None, None)),
        (Usage(None, 5), PRICED, (None, 10, None)),
        (Usage(10, 5), ModelProfile("unpriced"), (20, 10, None)),
    ],
)
async def test_one_reply_without_usage_or_price_makes_that_total_unknown(
    usage: Usage | None, profile: ModelProfile, expected: tuple[int | None, ...]
) -> None:
    model = MeteredModel(
        ScriptedModel([say("a", usage=Usage(10, 5)), say("b", usage=usage)], profile=profile)
    )
    for _ in range(2):
        await model.reply(REQUEST, None)
    meter = model.meter
    assert (meter.input_tokens, meter.output_tokens, meter.cost_nano) == expected
    assert meter.calls == 2


async def test_a_meter_counts_failed_and_cancelled_calls() -> None:
    model = MeteredModel(ScriptedModel([ModelFailed("no")]))
    with pytest.raises(ModelFailed, match="no"):
        await model.reply(REQUEST, None)
    waiting = MeteredModel(FunctionModel(never))
    task = asyncio.create_task(waiting.reply(REQUEST, None))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (model.meter.calls, model.meter.failures) == (1, 1)
    assert (waiting.meter.calls, waiting.meter.failures) == (1, 1)


# --- the deadline


async def test_a_model_that_does_not_answer_in_time_fails_with_kind_timeout() -> None:
    model = TimeoutModel(FunctionModel(never), seconds=0.01)
    with pytest.raises(ModelFailed, match=r"never gave no reply within 0\.01 s") as caught:
        await model.reply(REQUEST, None)
    assert (caught.value.kind, caught.value.retriable) == ("timeout", False)
    assert (await ran(model)).reason is StopReason.LLM_TIMEOUT


async def test_a_timeout_error_of_the_model_itself_is_not_taken_for_the_deadline() -> None:
    def fails(_: ModelRequest) -> Reply:
        raise TimeoutError("my own socket")

    with pytest.raises(TimeoutError, match="my own socket"):
        await TimeoutModel(FunctionModel(fails), seconds=60).reply(REQUEST, None)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_deadline_that_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="more than 0 seconds"):
        TimeoutModel(FunctionModel(never), seconds=seconds)


# --- faults


async def test_only_the_chosen_call_meets_its_fault() -> None:
    model = FaultyModel(ScriptedModel(["a", "b"]), faults={2: Fault.DOWN})
    assert (await model.reply(REQUEST, None)).text == "a"
    with pytest.raises(ModelFailed) as caught:
        await model.reply(REQUEST, None)
    assert (caught.value.retriable, caught.value.status) == (False, 401)
    assert (await model.reply(REQUEST, None)).text == "b"
    assert model.calls == 3


def test_a_fault_in_call_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="numbered from 1"):
        FaultyModel(ScriptedModel([]), faults={0: Fault.BUSY})


def two_looks() -> ScriptedModel:
    return ScriptedModel([calls(call("look", id="c1"), call("look", id="c2", at="there")), say("done")])


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault.BUSY, StopReason.COMPLETED),
        (Fault.DOWN, StopReason.LLM_ERROR),
        (Fault.HANGS, StopReason.LLM_TIMEOUT),
        (Fault.TRUNCATED, StopReason.TRUNCATED_REPLY),
        (Fault.REFUSED, StopReason.REFUSED),
        (Fault.EMPTY, StopReason.INVALID_DECISION),
        (Fault.DUPLICATE_IDS, StopReason.DUPLICATE_CALL_ID),
        (Fault.MALFORMED_ARGUMENTS, StopReason.COMPLETED),
    ],
)
async def test_each_fault_leads_a_run_to_its_end(fault: Fault, reason: StopReason) -> None:
    result = await ran(FaultyModel(two_looks(), faults={1: fault}), model_seconds=0.05)
    assert result.reason is reason
    bodies = [entry.body for entry in result.entries]
    if fault is Fault.BUSY:
        assert [b.status for b in bodies if isinstance(b, AttemptFailed)] == [429]
    if fault is Fault.MALFORMED_ARGUMENTS:
        assert [b.failure for b in bodies if isinstance(b, CallEnded)] == ["invalid_arguments"] * 2


def test_the_table_of_faults_is_whole() -> None:
    assert len(Fault) == 8


async def test_a_fault_that_spoils_a_reply_leaves_the_model_behind_it_alone() -> None:
    reply = calls(call("look", id="c1"))
    model = FaultyModel(ScriptedModel([reply]), faults={1: Fault.DUPLICATE_IDS})
    assert (await model.reply(REQUEST, None)).calls[0].id == "same"
    assert reply.calls[0].id == "c1"


# --- the models behind


async def test_a_script_says_its_lines_in_order_and_then_fails_the_attempt() -> None:
    model = ScriptedModel(["a", lambda request: say(f"step {request.step}"), ModelFailed("broken")])
    assert (await model.reply(REQUEST, None)).text == "a"
    assert (await model.reply(REQUEST, None)).text == "step 1"
    with pytest.raises(ModelFailed, match="broken"):
        await model.reply(REQUEST, None)
    with pytest.raises(ModelFailed, match="has 3 lines and was asked for one more"):
        await model.reply(REQUEST, None)
    assert model.unused == 0
    assert [request.step for request in model.requests] == [1] * 4


def leave(model: ScriptedModel, raising: Callable[[], None]) -> None:
    with model:
        raising()


def test_a_script_that_was_not_used_up_fails_the_test_unless_it_fails_already() -> None:
    with pytest.raises(AssertionError, match="2 of 2 scripted lines were not used"):
        leave(ScriptedModel(["a", "b"]), lambda: None)
    with pytest.raises(ZeroDivisionError):
        leave(ScriptedModel(["a", "b"]), lambda: [][1 // 0])


async def test_a_streamed_script_tells_text_calls_and_arguments_in_pieces() -> None:
    heard: list[Delta] = []
    script = calls(call("look", id="c1", at="the long corridor"), text="let me see")
    reply = await ScriptedModel([script]).reply(REQUEST, heard.append)
    assert reply == script
    assert [d.kind for d in heard] == [
        "text",
        "text",
        "call",
        "arguments",
        "arguments",
        "arguments",
        "arguments",
    ]
    quiet: list[Delta] = []
    assert await ScriptedModel([script], stream=False).reply(REQUEST, quiet.append) == script
    assert quiet == []


async def test_a_function_sync_or_async_is_a_model() -> None:
    def echo(request: ModelRequest) -> Reply:
        return say(f"step {request.step}")

    async def later(request: ModelRequest) -> Reply:
        await asyncio.sleep(0)
        return echo(request)

    heard: list[Delta] = []
    assert (await FunctionModel(echo).reply(REQUEST, None)).text == "step 1"
    assert (await FunctionModel(later).reply(REQUEST, heard.append)).text == "step 1"
    assert "".join(d.text for d in heard) == "step 1"
    assert FunctionModel(echo).profile.name == "echo"
    assert FunctionModel(echo, profile=PRICED).profile is PRICED


def test_a_numbered_call_has_an_id_of_its_own() -> None:
    assert call("a").id != call("a").id
    assert say("x", finish=Finish.LENGTH).finish is Finish.LENGTH
