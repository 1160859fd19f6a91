"""What an application brings may raise anything: one failed call, attempt or denial (contract 5.2)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fencepost import ArgumentsInvalid, Limits, ModelFailed, Recovery, Reply, StopReason, ToolFailed, Usage
from fencepost.core.entries import AttemptFailed, Replied
from fencepost.core.messages import Finish, ModelProfile, ToolCall, ToolDefinition
from fencepost.core.recovery import Reaction
from fencepost.models.scripted import call, calls, say
from fencepost.ports import Authorization, CallContext, Prepared
from fencepost.run.foreign import authorized, describe
from tests.conformance.stage import Says, Stage, said
from tests.run.conftest import contents


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even words")


class Odd:
    """A tool whose parts are replaced one by one."""

    def __init__(self, tool: Any, **parts: Any) -> None:
        self._tool, self._parts = tool, parts

    def __getattr__(self, name: str) -> Any:
        return self._parts.get(name) or getattr(self._tool, name)


def raising(error: BaseException) -> Any:
    def fails(*_: Any) -> Any:
        raise error

    return fails


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ValueError("odd"), "tool_error"),
        (ToolFailed("ask for less"), "tool_error"),
        (ArgumentsInvalid("not these"), "invalid_arguments"),
        (Speechless(), "tool_error"),
        (ToolFailed("half a pair \ud800 and \0"), "tool_error"),
    ],
    ids=["an exception", "the tool's no", "its arguments", "no words", "words no store keeps"],
)
@pytest.mark.parametrize("when", ["at once", "later", "beside others"])
async def test_whatever_a_body_raises_is_one_failed_call(
    stage: Stage, error: Exception, failure: str, when: str
) -> None:
    if when == "at once":
        look: Any = Odd(stage.look(), run=raising(error))
    else:
        look = stage.look(then=raising(error), parallel=when == "beside others")
    result = await stage.play([calls(call("look")), say("done")], look)
    assert (said(result), result.text) == ([("failed", failure)], "done")


@pytest.mark.parametrize("field", ["invalid_arguments", "tool_error"])
async def test_a_body_that_does_not_take_its_arguments_is_met_by_the_policy_for_arguments(
    stage: Stage, field: str
) -> None:
    recovery = replace(Recovery.default(), **{field: Reaction.STOP})
    look = stage.look(then=raising(ArgumentsInvalid("not these")))
    script = [calls(call("look")), *([say("done")] if field == "tool_error" else [])]
    result = await stage.play(script, look, recovery=recovery)
    stopped = StopReason.INVALID_ARGUMENTS if field == "invalid_arguments" else StopReason.COMPLETED
    assert result.reason is stopped


async def test_a_tool_that_cannot_look_at_its_arguments_does_not_get_them(stage: Stage) -> None:
    look = Odd(stage.look(), prepare=raising(RecursionError("too deep")))
    result = await stage.play([calls(call("look")), say("done")], look)
    assert said(result) == [("failed", "invalid_arguments")]
    assert "not checked: RecursionError: too deep" in contents(result)[0]
    assert stage.ran() == []


async def test_an_operation_key_that_raises_makes_one_failed_call(stage: Stage) -> None:
    act = stage.act(operation_key=lambda arguments: "x" * arguments["n"])
    script = [calls(call("act", n=0)), calls(call("act", n=1000)), calls(call("act", n=3)), say("done")]
    result = await stage.play(script, act)
    assert said(result) == [("failed", "tool_error"), ("failed", "tool_error"), ("ok", "")]
    assert stage.ran() == ["act 3"]


@pytest.mark.parametrize(
    ("error", "failure"), [(ArgumentsInvalid("changed"), "invalid_arguments"), (KeyError("x"), "tool_error")]
)
async def test_arguments_a_tool_took_and_does_not_take_after_the_wait_make_one_failed_call(
    stage: Stage, error: Exception, failure: str
) -> None:
    act, boundary = stage.act(), Says(act="ask")
    agent = stage.agent([calls(call("act")), say("done")], act, boundary=boundary)
    await stage.run(agent, task="t")
    await stage.decide("t", "1.0")
    changed: Any = Odd(act, prepare=raising(error))
    result = await stage.resume(stage.agent([], changed, model=agent.model, boundary=boundary), "t")
    assert said(result) == [("failed", failure)]
    assert "act did not take the arguments" in contents(result)[0]
    assert stage.ran() == []


# --- rules


class Broken:
    """Rules that cannot be applied."""

    version, self_approval = "broken", True

    def __init__(self, word: str | Exception) -> None:
        self.word = word

    def authorize(self, principal: str, definition: ToolDefinition, arguments: str, /) -> Authorization:
        if isinstance(self.word, Exception):
            raise self.word
        return Authorization(self.word, "because", self.version)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (ValueError("a typo"), "the rules failed with ValueError: a typo, which allows nothing"),
        ("maybe", "the rules said 'maybe', which allows nothing"),
    ],
    ids=["they raise", "they say something else"],
)
async def test_rules_that_cannot_be_applied_deny(stage: Stage, word: Any, reason: str) -> None:
    result = await stage.play([calls(call("look")), say("done")], stage.look(), boundary=Broken(word))
    assert said(result) == [("denied", "denied")]
    assert reason in contents(result)[0]
    definition = stage.look().definition
    assert authorized(Broken(word), "ada", definition, "{}") == Authorization("deny", reason, "broken")


async def test_rules_that_break_between_the_approval_and_the_start_deny(stage: Stage) -> None:
    act = stage.act()
    agent = stage.agent([calls(call("act")), say("done")], act, boundary=Says(act="ask"))
    await stage.run(agent, task="t")
    await stage.decide("t", "1.0")
    broken = stage.agent([], act, model=agent.model, boundary=Broken(ValueError("a typo")))
    result = await stage.resume(broken, "t")
    assert (said(result), stage.ran()) == ([("denied", "denied")], [])


# --- models


class Returning:
    """A model that returns these values, one after the other, whatever they are."""

    def __init__(self, *values: Any) -> None:
        self.profile = ModelProfile("returning", input_nano=0, output_nano=0)
        self._values = list(values)

    async def reply(self, *_: Any) -> Any:
        return self._values.pop(0)


def unreadable(**fields: Any) -> Reply:
    return Reply(**{"text": "", "finish": Finish.TOOL_CALLS, **fields})


@pytest.mark.parametrize(
    "reply",
    [
        unreadable(text=None),
        unreadable(calls=None),
        unreadable(calls=("look",)),
        unreadable(opaque=7),
        unreadable(usage="much"),
    ],
    ids=["text", "calls", "a call", "opaque", "usage"],
)
async def test_a_reply_whose_fields_are_not_what_they_say_is_a_failed_attempt(
    stage: Stage, reply: Reply
) -> None:
    result = await stage.run(stage.agent([], stage.look(), model=Returning(reply)))
    failed = [e.body for e in result.entries if isinstance(e.body, AttemptFailed)]
    assert (result.reason, [f.kind for f in failed]) == (StopReason.LLM_ERROR, ["protocol"])
    assert failed[0].charged_tokens > 0


async def test_a_model_that_returns_no_reply_is_a_failed_attempt(stage: Stage) -> None:
    result = await stage.run(stage.agent([], model=Returning("words")))
    failed = [e.body for e in result.entries if isinstance(e.body, AttemptFailed)]
    assert [f.detail for f in failed] == ["TypeError: the model returned str, not a Reply"]


async def test_a_model_that_raises_before_its_first_await_is_a_failed_attempt(stage: Stage) -> None:
    class AtOnce(Returning):
        def reply(self, *_: Any) -> Any:
            raise ValueError("no")

    result = await stage.run(stage.agent([], model=AtOnce()))
    assert result.reason is StopReason.LLM_ERROR


async def test_lists_in_a_reply_are_kept_as_tuples(stage: Stage) -> None:
    listed = unreadable(calls=[ToolCall("c1", "look", "{}")], opaque=[])
    result = await stage.run(stage.agent([], stage.look(), model=Returning(listed, say("done"))))
    replied = next(e.body for e in result.entries if isinstance(e.body, Replied))
    assert (type(replied.calls), type(replied.opaque), result.text) == (tuple, tuple, "done")


@pytest.mark.parametrize("usage", [Usage(-5, 5), Usage(5, -5), Usage(5, 5, cost_nano=-1000)])
async def test_less_than_nothing_is_unknown_usage_and_refunds_no_budget(stage: Stage, usage: Usage) -> None:
    result = await stage.play([say("done", usage=usage)], limits=Limits(3, cost_nano=10**9))
    replied = next(e.body for e in result.entries if isinstance(e.body, Replied))
    assert replied.usage is not None
    assert min(n for n in (replied.usage.input_tokens, replied.usage.output_tokens, 0) if n is not None) == 0
    assert replied.charged_tokens > 0
    assert (replied.charged_nano or 0) >= 0


async def test_a_failed_attempt_is_charged_what_it_reports_and_no_less_than_nothing(stage: Stage) -> None:
    spent = ModelFailed("late", kind="incomplete", retriable=True, retry_after=0, usage=Usage(7, 4))
    refund = ModelFailed("later", kind="incomplete", retriable=True, retry_after=0, usage=Usage(-7, -4))
    result = await stage.play([spent, refund, say("done")])
    first, second = [e.body for e in result.entries if isinstance(e.body, AttemptFailed)]
    assert first.charged_tokens == 11
    assert second.charged_tokens > 11


# --- words


def test_an_exception_is_described_by_type_and_words_in_a_bounded_text() -> None:
    assert describe(ValueError("no")) == "ValueError: no"
    assert describe(ValueError()) == "ValueError"
    assert describe(Speechless()) == "Speechless"
    assert describe(ValueError("a\0b\ud800")) == "ValueError: a\ufffdb\ufffd"
    assert len(describe(ValueError("x" * 10_000))) == 2000


def test_a_context_says_who_where_and_for_how_long() -> None:
    context = CallContext("t", "local", "ada", 1, 0, 1, "t:1.0", 60.0)
    assert (context.key, context.seconds) == ("t:1.0", 60.0)
    assert Prepared("look", "{}", "d", {}).canonical == "{}"
