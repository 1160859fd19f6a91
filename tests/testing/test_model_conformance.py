"""The suite for models tells good adapters from bad ones (contract 3.1, 3.5, 5, 6.5).

Rule of this file: a bad model is a good one with one fault, and the suite names the rule it breaks.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from fencepost.core.errors import ModelFailed
from fencepost.core.messages import Finish, ModelProfile, ModelRequest, Reply, ToolCall, Usage, UserMessage
from fencepost.models.scripted import streamed
from fencepost.ports import Delta, Sink
from fencepost.testing import FunctionModel, ScriptedModel, call, calls, say
from fencepost.testing.conformance import MODEL_RULES, ConformanceBroken, Verdict, check_model

# The suite waits in real time for what must not happen: briefly. What must happen has as long as a busy machine needs.
QUICK: dict[str, Any] = {"run_seconds": 20.0, "grace_seconds": 20.0, "settle_seconds": 0.02}
ECHO = calls(call("echo", text="ready"))


class Streaming:
    """An adapter that takes its time and keeps every rule; a subclass spoils one part."""

    profile = ModelProfile("streaming", input_nano=1, output_nano=1)

    def __init__(self, reply: Any = ECHO) -> None:
        self.given = reply

    async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
        await asyncio.sleep(0.01)
        found: Reply = self.given
        return found if sink is None else streamed(found, sink)


async def test_an_adapter_that_keeps_every_rule_holds_them_all() -> None:
    cut = ScriptedModel([ModelFailed("the stream ended", kind="incomplete")])
    report = await check_model(Streaming(), cut=cut, **QUICK)
    assert {found.rule: found.verdict for found in report.findings} == dict.fromkeys(
        MODEL_RULES, Verdict.HOLDS
    )


async def test_a_scripted_model_keeps_every_rule_that_can_be_checked() -> None:
    report = await check_model(ScriptedModel([ECHO] * 4), **QUICK)
    report.check()
    assert report.said("cancel") == "the reply came at once, so there was nothing to cancel"
    assert report.verdict("cut") is Verdict.UNCHECKED


async def test_a_model_without_tools_and_without_usage_is_asked_for_words() -> None:
    asked: list[ModelRequest] = []

    def speak(request: ModelRequest) -> Reply:
        asked.append(request)
        return say("ready", usage=None)

    model = FunctionModel(speak, profile=ModelProfile("words", calls_tools=False, max_output_tokens=7))
    report = await check_model(model, **QUICK)
    report.check()
    assert {request.tools for request in asked} == {()}
    assert {request.max_output_tokens for request in asked} == {7}
    assert "usage is unknown and says so" in report.said("usage")
    assert report.verdict("ids") is Verdict.UNCHECKED


async def test_the_request_that_was_given_is_the_one_that_is_made() -> None:
    asked: list[ModelRequest] = []

    def speak(request: ModelRequest) -> Reply:
        asked.append(request)
        return say("ready")

    mine = ModelRequest("", (UserMessage("mine"),), (), 1, 1, 5.0, 10)
    report = await check_model(FunctionModel(speak), request=mine, **QUICK)
    report.check()
    assert set(map(id, asked)) == {id(mine)}


# --- profiles and replies ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        (ModelProfile(""), "its profile has no name"),
        (ModelProfile("m", bytes_per_token=0), "its bytes_per_token is 0"),
        (ModelProfile("m", max_output_tokens=-1), "its max_output_tokens is -1"),
        (ModelProfile("m", input_nano=0.5), "its input_nano is 0.5"),  # type: ignore[arg-type]
        (ModelProfile("m", output_nano=-1), "its output_nano is -1"),
    ],
)
async def test_a_profile_budgets_cannot_rest_on_is_named(profile: ModelProfile, said: str) -> None:
    model = Streaming()
    model.profile = profile
    report = await check_model(model, **QUICK)
    assert [found.rule for found in report.broken] == ["profile"]
    assert said in report.said("profile")


async def test_a_model_without_a_profile_is_asked_nothing() -> None:
    class Bare(Streaming):
        profile = "none"  # type: ignore[assignment]

    class Bursts(Streaming):
        @property
        def profile(self) -> ModelProfile:  # type: ignore[override]
            raise KeyError("name")

    models: tuple[Any, ...] = (Bare(), Bursts())
    for model in models:
        report = await check_model(model, **QUICK)
        assert report.said("profile") == "it has no ModelProfile"
        assert report.subject == type(model).__name__
        assert report.verdict("reply") is Verdict.UNCHECKED


async def test_a_profile_that_changes_is_named() -> None:
    class Moody(Streaming):
        asked = 0

        @property
        def profile(self) -> ModelProfile:  # type: ignore[override]
            self.asked += 1
            return ModelProfile("moody", input_nano=self.asked)

    assert "differs from one time" in (await check_model(Moody(), **QUICK)).said("profile")


def _reply(**changed: Any) -> Reply:
    return replace(ECHO, **changed)


@pytest.mark.parametrize(
    ("reply", "rule", "said"),
    [
        ("ready", "reply", "it gave a str, not a Reply (without a sink)"),
        (_reply(finish="stop"), "reply", "its finish is 'stop', not a Finish"),
        (_reply(finish=Finish.UNKNOWN), "reply", "provider_finish does not say"),
        (say(" \n"), "reply", "holds neither words nor calls"),
        (_reply(calls=(ToolCall("", "echo", "{}"),)), "ids", "has no id or no name"),
        (_reply(calls=(ToolCall("1", "", "{}"),)), "ids", "has no id or no name"),
        (_reply(calls=(ToolCall("1", "echo", "{}"),) * 2), "ids", "has the id '1' twice"),
        (_reply(usage={"input": 3}), "usage", "its usage is a dict"),
        (_reply(usage=Usage(input_tokens=-3)), "usage", "its usage.input_tokens is -3"),
        (_reply(usage=Usage(input_tokens=0, output_tokens=3)), "usage", "0 input tokens"),
    ],
)
async def test_a_reply_the_loop_cannot_use_is_named(reply: Any, rule: str, said: str) -> None:
    class Plain(Streaming):
        async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
            await asyncio.sleep(0.01)
            found: Reply = self.given
            return found

    report = await check_model(Plain(reply), **QUICK)
    assert [found.rule for found in report.broken] == [rule]
    assert said in report.said(rule)
    with pytest.raises(ConformanceBroken, match=f"the model streaming breaks 1 rules:\n- {rule}"):
        report.check()


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (
            ConnectionError("refused"),
            "it raised ConnectionError: refused; a failure of a model is a ModelFailed",
        ),
        (ModelFailed("no", kind="oops"), "its failure has the kind 'oops'"),
        (ModelFailed("no", kind="status", retry_after=-1.0), "its failure says retry_after -1.0"),
        (ModelFailed("no key", kind="auth"), "no reply came: ModelFailed: no key"),
    ],
)
async def test_a_failure_is_named_and_so_is_one_that_does_not_say_its_kind(
    failure: Exception, said: str
) -> None:
    report = await check_model(ScriptedModel([failure] * 4), **QUICK)
    assert said in report.said("reply")
    assert report.verdict("usage") is Verdict.UNCHECKED


async def test_a_model_that_never_replies_is_named() -> None:
    class Hangs(Streaming):
        async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
            never: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            return await never

    report = await check_model(Hangs(), cut=Hangs(), **{**QUICK, "run_seconds": 0.05})
    assert "no reply came within 0.05 s" in report.said("reply")
    assert report.verdict("cancel") is Verdict.HOLDS


# --- sinks, cancels, cuts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (Delta("text", "other"), "5 characters of text"),
        (Delta("arguments", "{}"), "other arguments of call 0"),
        (Delta("arguments", "{}", 4), "other arguments of call 4"),
        (Delta("sound", "la"), "a delta has the kind 'sound'"),
    ],
)
async def test_a_sink_that_is_told_something_else_is_named(told: Delta, said: str) -> None:
    class Tells(Streaming):
        async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
            if sink is not None:
                sink(told)
            return await super().reply(request, None, *())

    report = await check_model(Tells(), **QUICK)
    assert [found.rule for found in report.broken] == ["sink"]
    assert said in report.said("sink")


async def test_a_model_that_tells_its_sink_after_a_cancel_is_named() -> None:
    background: set[asyncio.Task[None]] = set()

    async def later(sink: Sink) -> None:
        await asyncio.sleep(0.05)
        sink(Delta("text", "late"))

    class Late(Streaming):
        async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
            try:
                return await super().reply(request, sink)
            except asyncio.CancelledError:
                assert sink is not None
                background.add(asyncio.create_task(later(sink)))
                raise

    report = await check_model(Late(), **{**QUICK, "settle_seconds": 0.5})
    assert [found.rule for found in report.broken] == ["sink-after-cancel"]


async def test_a_model_that_swallows_its_cancel_is_named() -> None:
    release = asyncio.Event()

    class HoldsOn(Streaming):
        async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
            try:
                return await super().reply(request, sink)
            except asyncio.CancelledError:
                await release.wait()
                raise

    report = await check_model(HoldsOn(), **{**QUICK, "grace_seconds": 0.05})
    assert "it went on for more than 0.05 s" in report.said("cancel")
    release.set()


async def test_a_model_that_turns_its_cancel_into_a_reply_or_a_failure_is_named() -> None:
    class Turns(Streaming):
        async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
            try:
                return await super().reply(request, sink)
            except asyncio.CancelledError:
                if self.given is ECHO:
                    return self.given
                raise ModelFailed("it was cut", kind="incomplete") from None

    report = await check_model(Turns(), **QUICK)
    assert "it ended with a reply although it was cancelled" in report.said("cancel")
    report = await check_model(Turns(say("ready")), **QUICK)
    assert "it ended with ModelFailed: it was cut although" in report.said("cancel")


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        (ScriptedModel([say("half of")]), "a stream that ended half-way became a reply"),
        (ScriptedModel([EOFError("end")]), "it raised EOFError: end"),
    ],
)
async def test_a_cut_stream_that_is_no_failure_is_named(cut: ScriptedModel, said: str) -> None:
    report = await check_model(Streaming(), cut=cut, **QUICK)
    assert [found.rule for found in report.broken] == ["cut"]
    assert said in report.said("cut")


# --- what a model does to its process ----------------------------------------------------------------------


async def test_what_a_model_blocks_and_leaves_behind_is_named() -> None:
    done = threading.Event()
    started: list[subprocess.Popen[bytes]] = []

    def speak(kind: str) -> Callable[[ModelRequest], Reply]:
        def reply(_: ModelRequest) -> Reply:
            if kind == "loop":
                done.wait(0.1)
            elif kind == "thread":
                threading.Thread(target=done.wait).start()
            else:
                started.append(subprocess.Popen(["sleep", "60"]))
            return ECHO

        return reply

    report = await check_model(FunctionModel(speak("loop")), pause_seconds=0.08, **QUICK)
    assert "it kept the event loop for 0.1" in report.said("loop")
    report = await check_model(FunctionModel(speak("thread")), **QUICK)
    assert "each reply leaves more threads" in report.said("leaves-nothing")
    done.set()
    report = await check_model(FunctionModel(speak("process")), **QUICK)
    assert "each reply leaves more processes: sleep" in report.said("leaves-nothing")
    assert {process.wait(timeout=10) for process in started} == {-9}
