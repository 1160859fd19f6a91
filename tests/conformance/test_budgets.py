"""Rows C, L45 to L54: what a task may use, and every reason for which it may end (contract 6 and 9)."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from fencepost import (
    CallContext,
    Finish,
    FunctionModel,
    Limits,
    ModelFailed,
    ModelProfile,
    ModelRequest,
    Recovery,
    Reply,
    Result,
    StopReason,
    TaskState,
    Usage,
)
from fencepost.core.entries import AttemptFailed, ModelAsked, Replied
from fencepost.core.errors import LimitsInvalid
from fencepost.core.recovery import OnUnknown, Reaction
from fencepost.models.scripted import answer, call, calls, say
from fencepost.ports import Beat
from fencepost.service import tasks
from fencepost.testing.clock import FakeClock
from tests.conformance.stage import TINY_SECONDS, Crash, Says, Stage, crash_at, forever, raw, reply, said

PRICED = ModelProfile("priced", input_nano=3, output_nano=5, max_output_tokens=100)


def asked(result: Result) -> int:
    """How often the model was asked."""
    return sum(isinstance(e.body, ModelAsked) for e in result.entries)


# --- L45, L46: tool calls --------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [False, True], ids=["sequential", "parallel"])
@pytest.mark.parametrize("left", [0, 1, 3])
async def test_l45_exactly_the_calls_that_are_left_run_in_order(
    stage: Stage, parallel: bool, left: int
) -> None:
    limits = Limits(steps=5, tool_calls=left + 1)
    script = [calls(call("act", n=0)), calls(*(call("act", n=i) for i in range(1, 2 * left + 2)))]
    result = await stage.play([*script, say("more")], stage.act(parallel=parallel), limits=limits)
    assert result.reason is StopReason.MAX_TOOL_CALLS_EXHAUSTED
    assert stage.ran() == [f"act {i}" for i in range(left + 1)]
    assert said(result)[1:] == [("ok", "")] * left + [("not_executed", "budget")] * (left + 1)


async def test_l45_a_budget_of_no_calls_runs_none(stage: Stage) -> None:
    result = await stage.play([calls(call("act"))], stage.act(), limits=Limits(steps=5, tool_calls=0))
    assert (result.reason, stage.ran()) == (StopReason.MAX_TOOL_CALLS_EXHAUSTED, [])


async def test_l46_failing_calls_are_counted(stage: Stage) -> None:
    def fail(context: CallContext, n: int) -> None:
        raise ValueError(str(n))

    script = [calls(call("act", n=i)) for i in range(10)]
    result = await stage.play(script, stage.act(then=fail), limits=Limits(steps=20, tool_calls=3))
    assert result.reason is StopReason.MAX_TOOL_CALLS_EXHAUSTED
    assert len(stage.ran()) == 3


async def test_l46_refused_denied_and_unknown_calls_are_counted(stage: Stage) -> None:
    script = [
        reply(raw("act", '{"n": "x"}', "c1")),
        calls(call("nothing")),
        calls(call("pay")),
        calls(call("act", n=4)),
    ]
    boundary = Says(pay="deny")
    limits = Limits(steps=20, tool_calls=3)
    result = await stage.play(script, stage.act(), stage.act("pay"), limits=limits, boundary=boundary)
    assert result.reason is StopReason.MAX_TOOL_CALLS_EXHAUSTED
    assert stage.ran() == []
    assert [failure for _, failure in said(result)] == [
        "invalid_arguments",
        "unknown_tool",
        "denied",
        "budget",
    ]


# --- L47: tokens and money -------------------------------------------------------------------------------

TOO_MANY = Usage(input_tokens=900, output_tokens=200)
TOKENS = Limits(steps=5, tokens=1000)
MONEY = Limits(steps=5, cost_nano=1000)


@pytest.mark.parametrize("limit", ["tokens", "money"])
async def test_l47_a_reply_that_crosses_a_limit_is_kept_and_its_calls_are_closed(
    stage: Stage, limit: str
) -> None:
    crossing = calls(call("act", n=1), call("act", n=2), usage=TOO_MANY)
    limits = TOKENS if limit == "tokens" else MONEY
    result = await stage.play([crossing, say("more")], stage.act(), limits=limits, profile=PRICED)
    name = "TOKEN_BUDGET_EXCEEDED" if limit == "tokens" else "COST_BUDGET_EXCEEDED"
    assert result.reason is StopReason[name]
    assert stage.ran() == []
    assert said(result) == [("not_executed", name)] * 2
    assert sum(isinstance(e.body, Replied) for e in result.entries) == 1
    assert (result.row.tokens, result.row.cost_nano) == (1100, 900 * 3 + 200 * 5)


@pytest.mark.parametrize("limit", ["tokens", "money"])
async def test_l47_an_answer_that_crosses_a_limit_is_kept_as_partial_and_no_success(
    stage: Stage, limit: str
) -> None:
    limits = TOKENS if limit == "tokens" else MONEY
    result = await stage.play([say("the answer", usage=TOO_MANY)], limits=limits, profile=PRICED)
    assert result.state is TaskState.FAILED
    assert result.text == "the answer"
    last = result.entries[-1].body
    assert msgspec.to_builtins(last)["partial"] is True


async def test_l47_a_request_the_budget_cannot_bear_is_not_made(stage: Stage) -> None:
    script = [calls(call("act", n=1), usage=Usage(input_tokens=250, output_tokens=1)), say("more")]
    result = await stage.play(script, stage.act(), limits=MONEY, profile=PRICED)
    assert result.reason is StopReason.COST_BUDGET_EXCEEDED
    assert (asked(result), stage.ran()) == (1, ["act 1"])


async def test_l47_what_a_crash_left_reserved_is_charged(stage: Stage) -> None:
    agent = stage.agent([say("lost")], profile=PRICED)
    stage.store.after = crash_at(1)
    with pytest.raises(Crash):
        await stage.run(agent, task="task-1")
    stage.store.after = None
    result = await stage.resume(stage.agent([say("done")], profile=PRICED), "task-1", take_over=True)
    first = next(e.body for e in result.entries if isinstance(e.body, ModelAsked))
    lost = next(e.body for e in result.entries if isinstance(e.body, AttemptFailed))
    assert (lost.charged_tokens, lost.charged_nano) == (first.reserved_tokens, first.reserved_nano)
    assert result.row.tokens == first.reserved_tokens + 15


# --- L49: the task's own deadline ------------------------------------------------------------------------

SHORT = Limits(steps=5, task_seconds=0.05, grace_seconds=TINY_SECONDS)


def used_up(clock: FakeClock) -> Callable[..., Awaitable[Any]]:
    """A body in which the task's time passes, and that never ends: no slow machine can be late for it."""

    async def hangs(*_: Any) -> Any:
        clock.advance(1)
        await forever()

    return hangs


async def test_l49_a_deadline_in_the_model_is_the_tasks(stage: Stage) -> None:
    clock = FakeClock()
    result = await stage.run(stage.agent([], model=FunctionModel(used_up(clock)), limits=SHORT), clock=clock)
    assert result.reason is StopReason.TASK_TIMEOUT
    assert result.row.tokens > 0


@pytest.mark.parametrize("effect", ["read", "idempotent", "write"])
@pytest.mark.parametrize("parallel", [False, True], ids=["alone", "parallel"])
async def test_l49_a_deadline_in_a_tool_is_the_tasks_and_closes_all(
    stage: Stage, effect: str, parallel: bool
) -> None:
    clock = FakeClock()
    act = stage.act(then=used_up(clock), effect=effect, parallel=parallel)
    script = [calls(call("act", n=1), call("look", n=2))]
    result = await stage.play(script, act, stage.look(), limits=SHORT, options={"clock": clock})
    assert result.reason is StopReason.TASK_TIMEOUT
    assert stage.ran() == ["act 1"]
    first = ("unknown", "TASK_TIMEOUT") if effect == "write" else ("timeout", "timeout")
    assert said(result) == [first, ("not_executed", "TASK_TIMEOUT")]


async def test_l49_a_deadline_between_two_calls_starts_no_more(stage: Stage) -> None:
    clock = FakeClock()

    def passes(context: CallContext, n: int) -> str:
        clock.advance(601)
        return "took its time"

    script = [calls(call("act", n=1), call("act", n=2))]
    result = await stage.play(script, stage.act(then=passes), options={"clock": clock})
    assert result.reason is StopReason.TASK_TIMEOUT
    assert stage.ran() == ["act 1"]
    assert said(result) == [("ok", ""), ("not_executed", "TASK_TIMEOUT")]


async def test_l49_a_deadline_between_the_reply_and_its_calls_starts_none(stage: Stage) -> None:
    clock = FakeClock()

    def answers(request: ModelRequest) -> Reply:
        clock.advance(601)
        return calls(call("act", n=1))

    agent = stage.agent([], stage.act(), model=FunctionModel(answers))
    result = await stage.run(agent, clock=clock)
    assert (result.reason, stage.ran()) == (StopReason.TASK_TIMEOUT, [])
    assert said(result) == [("not_executed", "TASK_TIMEOUT")]


async def test_l49_a_pause_longer_than_what_is_left_is_not_waited_for(stage: Stage) -> None:
    busy = ModelFailed("busy", kind="status", retriable=True, status=429, retry_after=601)
    result = await stage.play([busy, say("done")], options={"clock": FakeClock()})
    assert (result.reason, asked(result)) == (StopReason.TASK_TIMEOUT, 1)


async def test_l49_time_that_passes_while_people_think_is_not_the_tasks(stage: Stage) -> None:
    clock = FakeClock()
    agent = stage.agent([calls(call("act", n=1)), say("done")], stage.act(), boundary=Says(act="ask"))
    result = await stage.run(agent, clock=clock)
    clock.advance(100_000)
    await stage.decide(result.task, "1.0")
    result = await stage.resume(agent, result.task, clock=clock)
    assert (result.reason, stage.ran()) == (StopReason.COMPLETED, ["act 1"])


async def test_l49_the_seconds_of_earlier_runs_count(stage: Stage) -> None:
    clock = FakeClock()

    def passes(context: CallContext, n: int) -> str:
        clock.advance(400)
        return f"took its time {n}"

    script = [calls(call("act", n=1), call("pay", n=2)), calls(call("act", n=3)), say("done")]
    agent = stage.agent(script, stage.act(then=passes), stage.act("pay"), boundary=Says(pay="ask"))
    result = await stage.run(agent, clock=clock)
    assert result.outcome == "waiting"
    await stage.decide(result.task, "1.1")
    result = await stage.resume(agent, result.task, clock=clock)
    assert result.reason is StopReason.TASK_TIMEOUT
    assert result.row.seconds == pytest.approx(800, abs=1)


async def test_l49_a_lost_run_counts_to_its_last_heartbeat(stage: Stage) -> None:
    clock = FakeClock()

    def passes(context: CallContext, n: int) -> str:
        clock.advance(100)
        return "took its time"

    look = stage.look(then=passes)
    agent = stage.agent([calls(call("look", n=1)), say("done")], look)
    stage.store.after = crash_at(2)
    with pytest.raises(Crash):
        await stage.run(agent, task="task-1", clock=clock)
    stage.store.after = None
    assert stage.store.beat((Beat("local", "task-1", 1, 550.0),), lease_seconds=9) == frozenset()
    result = await stage.resume(agent, "task-1", take_over=True, clock=clock)
    assert result.reason is StopReason.TASK_TIMEOUT
    assert result.row.seconds == pytest.approx(650, abs=1)


# --- L51: the same call again ----------------------------------------------------------------------------


def same(n: int = 1, times: int = 3) -> list[Reply]:
    return [calls(call("look", n=n)) for _ in range(times)]


async def test_l51_the_third_equal_call_with_equal_results_is_not_executed(stage: Stage) -> None:
    result = await stage.play(same(), stage.look())
    assert result.reason is StopReason.REPEATED_TOOL_CALL
    assert stage.ran() == ["look 1", "look 1"]
    assert said(result)[-1] == ("not_executed", "REPEATED_TOOL_CALL")


async def test_l51_strict_stops_at_the_second(stage: Stage) -> None:
    result = await stage.play(same(), stage.look(), recovery=Recovery.strict())
    assert (result.reason, stage.ran()) == (StopReason.REPEATED_TOOL_CALL, ["look 1"])


async def test_l51_spelling_does_not_make_a_call_another(stage: Stage) -> None:
    spellings = ['{"n":1}', '{ "n" : 1.0 }', '{"\\u006e": 1}']
    script = [reply(raw("look", text, f"c{i}")) for i, text in enumerate(spellings)]
    result = await stage.play(script, stage.look())
    assert (result.reason, len(stage.ran())) == (StopReason.REPEATED_TOOL_CALL, 2)


async def test_l51_a_repeated_write_is_found_too(stage: Stage) -> None:
    script = [calls(call("act", n=1)) for _ in range(3)]
    result = await stage.play(script, stage.act())
    assert (result.reason, stage.ran()) == (StopReason.REPEATED_TOOL_CALL, ["act 1", "act 1"])


async def test_l51_a_failing_call_is_repeated_no_more_often(stage: Stage) -> None:
    def fail(context: CallContext, n: int) -> None:
        raise ValueError("always the same")

    result = await stage.play(same(), stage.look(then=fail))
    assert (result.reason, len(stage.ran())) == (StopReason.REPEATED_TOOL_CALL, 2)


async def test_l51_three_in_one_reply_are_found(stage: Stage) -> None:
    script = [calls(*(call("look", n=1) for _ in range(3)))]
    result = await stage.play(script, stage.look())
    assert (result.reason, len(stage.ran())) == (StopReason.REPEATED_TOOL_CALL, 2)


async def test_l51_reads_between_do_not_make_it_new(stage: Stage) -> None:
    script = [calls(call("look", n=n)) for n in (1, 2, 1, 3, 1)]
    result = await stage.play(script, stage.look())
    assert result.reason is StopReason.REPEATED_TOOL_CALL
    assert stage.ran() == ["look 1", "look 2", "look 1", "look 3"]


async def test_l51_a_different_result_goes_on(stage: Stage) -> None:
    seen: list[int] = []

    def changes(context: CallContext, n: int) -> int:
        seen.append(n)
        return len(seen) % 2  # never the same twice in a row

    result = await stage.play([*same(times=5), say("done")], stage.look(then=changes))
    assert (result.reason, len(stage.ran())) == (StopReason.COMPLETED, 5)


async def test_l51_a_write_between_goes_on(stage: Stage) -> None:
    script = [
        *same(times=2),
        calls(call("act", n=1)),
        *same(times=1),
        calls(call("act", n=2)),
        *same(times=1),
        say("x"),
    ]
    result = await stage.play(script, stage.look(), stage.act())
    assert (result.reason, stage.ran().count("look 1")) == (StopReason.COMPLETED, 4)


async def test_l51_a_tool_that_may_be_repeated_is(stage: Stage) -> None:
    result = await stage.play([*same(times=5), say("done")], stage.look(repeat="ok"))
    assert (result.reason, len(stage.ran())) == (StopReason.COMPLETED, 5)


# --- L52: every stop reason ------------------------------------------------------------------------------

Reach = Callable[[Stage], Awaitable[Result]]


def fails(*_: Any) -> None:
    raise ValueError("no")


async def cancelled(stage: Stage) -> Result:
    async def cancels(context: CallContext, n: int) -> None:
        await stage.cancel(context.task)

    return await stage.play([calls(call("act"))], stage.act(then=cancels))


async def lost_write(stage: Stage) -> Result:
    limits = Limits(steps=5, tool_seconds=TINY_SECONDS)
    recovery = Recovery(unknown_outcome=OnUnknown.STOP)
    return await stage.play([calls(call("act"))], stage.act(then=forever), limits=limits, recovery=recovery)


async def killed_over_and_over(stage: Stage) -> Result:
    agent = stage.agent([calls(call("act"))], stage.act())
    stage.store.before = crash_at(1)
    with pytest.raises(Crash):
        await stage.run(agent, task="task-1")
    for _ in range(4):
        stage.store.commits = 0
        with pytest.raises(Crash):
            await stage.resume(agent, "task-1", take_over=True)
    return await stage.resume(agent, "task-1", take_over=True)


STRICT = Recovery.strict()
QUICK = Limits(steps=5, tool_seconds=TINY_SECONDS, model_seconds=TINY_SECONDS, grace_seconds=TINY_SECONDS)
OVERFLOW = ModelFailed("the prompt is too long", kind="overflow")

REACHED: dict[StopReason, Reach] = {
    StopReason.COMPLETED: lambda s: s.play([say("done")]),
    StopReason.CANCELLED: cancelled,
    StopReason.MAX_STEPS_EXHAUSTED: lambda s: s.play([calls(call("act"))], s.act(), limits=Limits(steps=1)),
    StopReason.MAX_TOOL_CALLS_EXHAUSTED: lambda s: s.play(
        [calls(call("act"))], s.act(), limits=Limits(steps=2, tool_calls=0)
    ),
    StopReason.TOKEN_BUDGET_EXCEEDED: lambda s: s.play([say("x", usage=TOO_MANY)], limits=TOKENS),
    StopReason.COST_BUDGET_EXCEEDED: lambda s: s.play(
        [say("x", usage=TOO_MANY)], limits=MONEY, profile=PRICED
    ),
    StopReason.UNKNOWN_PRICE: lambda s: s.play([say("x")], limits=MONEY, profile=ModelProfile("unpriced")),
    StopReason.TASK_TIMEOUT: lambda s: s.play([], model=FunctionModel(forever), limits=SHORT),
    StopReason.LLM_TIMEOUT: lambda s: s.play([], model=FunctionModel(forever), limits=QUICK),
    StopReason.TOOL_TIMEOUT: lambda s: s.play(
        [calls(call("look"))], s.look(then=forever), limits=QUICK, recovery=STRICT
    ),
    StopReason.LLM_ERROR: lambda s: s.play([ModelFailed("no", kind="auth", status=401)]),
    StopReason.CONTEXT_OVERFLOW: lambda s: s.play([OVERFLOW]),
    StopReason.INVALID_DECISION: lambda s: s.play([say(" ")]),
    StopReason.TRUNCATED_REPLY: lambda s: s.play([say("half", finish=Finish.LENGTH)]),
    StopReason.REFUSED: lambda s: s.play([say("no", finish=Finish.REFUSAL)]),
    StopReason.DUPLICATE_CALL_ID: lambda s: s.play([calls(call("act", id=""))], s.act()),
    StopReason.REPEATED_TOOL_CALL: lambda s: s.play(same(), s.look()),
    StopReason.INVALID_ARGUMENTS: lambda s: s.play([reply(raw("act", "[]"))], s.act(), recovery=STRICT),
    StopReason.TOOL_ERROR: lambda s: s.play([calls(call("act"))], s.act(then=fails), recovery=STRICT),
    StopReason.TOOL_DENIED: lambda s: s.play(
        [calls(call("act"))], s.act(), boundary=Says(act="deny"), recovery=STRICT
    ),
    StopReason.TOOL_OUTCOME_UNKNOWN: lost_write,
    StopReason.INVALID_EVIDENCE: lambda s: s.play(
        [answer("x", {"text": "x", "evidence_id": "ev-1.0", "quote": "x"})], answer="cited", recovery=STRICT
    ),
    StopReason.TOO_MANY_ATTEMPTS: killed_over_and_over,
}

# What no code can end a task with yet, and why. Whoever makes one reachable moves it up.
NOT_YET: dict[StopReason, str] = {
    StopReason.ANSWER_NOT_ACCEPTED: "there is no acceptance check yet: it comes with the coding agent",
}


async def _a_bug_of_ours(stage: Stage) -> Result:
    """Contract 9: a run that dies of a bug ends its task with a name, and the bug reaches the caller."""

    class Nameless:
        asked = False

        @property
        def profile(self) -> ModelProfile:
            if self.asked:
                raise RuntimeError("no profile")
            return ModelProfile("nameless", input_nano=0, output_nano=0)

        async def reply(self, request: ModelRequest, sink: object, /) -> Reply:
            self.asked = True
            return calls(call("look"))

    agent = stage.agent([], stage.look(), model=Nameless())
    with pytest.raises(RuntimeError, match="no profile"):
        await stage.run(agent, task="task-bug")
    return await stage.resume(agent, "task-bug")


async def _another_definition(stage: Stage) -> Result:
    """Contract 2.6: an operator resumes into a changed definition and does not accept it."""
    waits = stage.agent([calls(call("act"))], stage.act(), boundary=Says(act="ask"))
    await stage.run(waits, task="task-changed")
    other = stage.agent([], stage.act(), instructions="be brief")
    await tasks.refuse_definition(stage.store, "task-changed", waits)
    assert (await stage.store.row("local", "task-changed")).state is TaskState.WAITING_APPROVAL, "unchanged"
    await tasks.refuse_definition(stage.store, "task-changed", other)
    return await stage.resume(waits, "task-changed")


REACHED[StopReason.INTERNAL_ERROR] = _a_bug_of_ours
REACHED[StopReason.DEFINITION_CHANGED] = _another_definition


@pytest.mark.parametrize("reason", REACHED)
async def test_l52_every_stop_reason_is_reached(stage: Stage, reason: StopReason) -> None:
    result = await REACHED[reason](stage)
    assert result.reason is reason
    assert result.outcome in ("stopped", "fenced")


def test_l52_the_reasons_are_a_closed_set() -> None:
    assert set(REACHED) | set(NOT_YET) == set(StopReason)
    assert not set(REACHED) & set(NOT_YET)
    assert len(StopReason) == 26


@pytest.mark.parametrize("reaction", Reaction)
async def test_l52_the_first_of_several_wrongs_names_the_stop(stage: Stage, reaction: Reaction) -> None:
    """Contract 3.6: a truncated reply with a duplicate id, over the token limit, is a truncated reply."""
    wrong = reply(call("act", id="x"), call("act", id="x"), finish="length", usage=TOO_MANY)
    recovery = Recovery(truncated=Reaction.STOP, duplicate_call_id=reaction)
    result = await stage.play([wrong], stage.act(), limits=TOKENS, recovery=recovery)
    assert (result.reason, stage.ran()) == (StopReason.TRUNCATED_REPLY, [])


async def test_l52_an_invalid_reply_with_a_duplicate_id_over_the_budget_is_invalid(stage: Stage) -> None:
    wrong = reply(*(call("act", id="x") for _ in range(17)), usage=TOO_MANY)
    result = await stage.play([wrong], stage.act(), limits=TOKENS)
    assert result.reason is StopReason.INVALID_DECISION


async def test_l52_a_duplicate_id_over_the_budget_is_a_duplicate_id(stage: Stage) -> None:
    wrong = reply(call("act", id="x"), call("act", id="x"), usage=TOO_MANY)
    result = await stage.play([wrong], stage.act(), limits=TOKENS)
    assert result.reason is StopReason.DUPLICATE_CALL_ID


async def test_l52_a_budget_comes_before_what_single_calls_would_stop_for(stage: Stage) -> None:
    wrong = reply(raw("act", "[]"), usage=TOO_MANY)
    result = await stage.play([wrong], stage.act(), limits=TOKENS, recovery=STRICT)
    assert result.reason is StopReason.TOKEN_BUDGET_EXCEEDED


async def test_l52_what_single_calls_stop_for_is_named_in_call_order(stage: Stage) -> None:
    recovery = Recovery(unknown_tool=Reaction.STOP, invalid_arguments=Reaction.STOP, denied=Reaction.STOP)
    wrongs = [raw("act", "[]", "c1"), raw("nothing", "{}", "c2"), raw("pay", "{}", "c3")]
    for first, reason in enumerate(
        [StopReason.INVALID_ARGUMENTS, StopReason.TOOL_DENIED, StopReason.TOOL_DENIED]
    ):
        asked_ = reply(*wrongs[first:], *wrongs[:first])
        tools = stage.act(), stage.act("pay")
        result = await stage.play([asked_], *tools, boundary=Says(pay="deny"), recovery=recovery)
        assert result.reason is reason
    assert stage.ran() == []


async def test_l52_a_used_up_call_budget_comes_before_used_up_steps(stage: Stage) -> None:
    limits = Limits(steps=1, tool_calls=1)
    script = [calls(call("act", n=1), call("act", n=2))]
    result = await stage.play(script, stage.act(), limits=limits)
    assert (result.reason, stage.ran()) == (StopReason.MAX_TOOL_CALLS_EXHAUSTED, ["act 1"])


async def test_l52_a_call_beyond_the_budget_stops_for_nothing_else(stage: Stage) -> None:
    limits = Limits(steps=5, tool_calls=1)
    script = [reply(call("act", n=1), raw("act", "[]", "c2"))]
    recovery = Recovery(invalid_arguments=Reaction.STOP)
    result = await stage.play(script, stage.act(), limits=limits, recovery=recovery)
    assert (result.reason, stage.ran()) == (StopReason.MAX_TOOL_CALLS_EXHAUSTED, ["act 1"])


async def test_l52_the_tasks_deadline_comes_before_the_models(stage: Stage) -> None:
    limits = Limits(steps=5, task_seconds=TINY_SECONDS, model_seconds=TINY_SECONDS)
    result = await stage.run(stage.agent([], model=FunctionModel(forever), limits=limits))
    assert result.reason is StopReason.TASK_TIMEOUT


async def test_l52_the_tasks_deadline_comes_before_a_tools(stage: Stage) -> None:
    limits = Limits(steps=5, task_seconds=0.05, tool_seconds=1, grace_seconds=TINY_SECONDS)
    script = [calls(call("look"))]
    result = await stage.play(script, stage.look(then=forever), limits=limits, recovery=STRICT)
    assert result.reason is StopReason.TASK_TIMEOUT


# --- L53, L54 --------------------------------------------------------------------------------------------


async def test_l53_the_last_step_runs_its_calls_and_asks_no_more(stage: Stage) -> None:
    script = [calls(call("act", n=1)), calls(call("act", n=2)), say("never asked")]
    result = await stage.play(script, stage.act(), limits=Limits(steps=2))
    assert result.reason is StopReason.MAX_STEPS_EXHAUSTED
    assert (asked(result), stage.ran()) == (2, ["act 1", "act 2"])
    assert len(stage.models[0].requests) == 2
    assert result.answer is None


@pytest.mark.parametrize(
    "limits",
    [Limits(steps=1), Limits(steps=9, tool_calls=0), TOKENS, MONEY],
    ids=["steps", "tool-calls", "tokens", "money"],
)
async def test_l53_no_model_is_asked_after_a_limit(stage: Stage, limits: Limits) -> None:
    script = [calls(call("act", n=1), usage=TOO_MANY), say("never asked")]
    result = await stage.play(script, stage.act(), limits=limits, profile=PRICED)
    assert result.state is TaskState.FAILED
    assert len(stage.models[0].requests) == 1


async def test_l53_a_resume_after_a_limit_asks_nothing(stage: Stage) -> None:
    agent = stage.agent([calls(call("act", n=1)), say("never asked")], stage.act(), limits=Limits(steps=1))
    first = await stage.run(agent)
    again = await stage.resume(agent, first.task)
    assert again.reason is StopReason.MAX_STEPS_EXHAUSTED
    assert len(stage.models[0].requests) == 1


async def test_l53_attempts_to_get_one_reply_are_three_at_most(stage: Stage) -> None:
    busy = ModelFailed("busy", kind="status", retriable=True, status=503)
    result = await stage.play([busy] * 4, options={"clock": FakeClock()})
    assert (result.reason, asked(result)) == (StopReason.LLM_ERROR, 3)
    assert len(stage.models[0].requests) == 3


def test_l54_steps_must_be_given_and_everything_else_is_finite() -> None:
    with pytest.raises(TypeError):
        Limits()  # type: ignore[call-arg]
    for name in Limits.__struct_fields__:
        value = getattr(Limits(steps=1), name)
        if name == "cost_nano":
            assert value is None  # money only if set
        else:
            assert math.isfinite(value), name
            assert value > 0, name


@pytest.mark.parametrize("name", list(Limits.__struct_fields__))
@pytest.mark.parametrize("value", [-1, math.inf, math.nan, True, "5", None])
async def test_l54_a_limit_that_is_none_is_refused_before_anything_is_stored(
    stage: Stage, name: str, value: Any
) -> None:
    if (name, value) == ("cost_nano", None):
        return
    limits = msgspec.structs.replace(Limits(steps=1), **{name: value})
    with pytest.raises(LimitsInvalid, match=name):
        await stage.play([say("x")], limits=limits)
    assert await stage.store.tasks("local") == ()


async def test_l54_no_steps_are_refused(stage: Stage) -> None:
    with pytest.raises(LimitsInvalid, match="steps"):
        await stage.play([say("x")], limits=Limits(steps=0))


async def test_l54_the_default_bounds_end_a_model_that_never_answers(stage: Stage) -> None:
    numbers = iter(range(10_000))

    def answers(request: ModelRequest) -> Reply:
        return calls(call("act", n=next(numbers)))

    agent = stage.agent([], stage.act(), model=FunctionModel(answers), limits=Limits(steps=1000))
    result = await stage.run(agent)
    assert result.reason is StopReason.MAX_TOOL_CALLS_EXHAUSTED
    assert len(stage.ran()) == 50
