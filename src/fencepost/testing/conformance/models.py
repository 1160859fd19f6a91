"""What every model adapter has to do: one rule, one finding (contract 3.1, 3.5, 5, 6.5).

Rule 1: a suite asks little, because each question may cost money: five short replies.
Rule 2: how an adapter meets a stream that is cut can only be seen with a provider that cuts it, so such a model
is given beside the first one (`cut`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping

from msgspec import Struct

from fencepost.core.errors import ModelFailed
from fencepost.core.limits import Limits
from fencepost.core.messages import (
    EXECUTABLE_FINISHES,
    Effect,
    Finish,
    ModelProfile,
    ModelRequest,
    Reply,
    ToolCall,
    ToolDefinition,
    Usage,
    UserMessage,
)
from fencepost.ports import Delta, Model
from fencepost.run.foreign import describe
from fencepost.testing.conformance.report import Finding, Report, broken, holds, unchecked
from fencepost.testing.conformance.running import Came, Runs, is_a
from fencepost.testing.conformance.watching import (
    LOOP_PAUSE_MOST,
    Left,
    LoopWatch,
    children,
    end,
    keeping_orphans,
)

MODEL_RULES: Mapping[str, str] = {
    "profile": "it says what budgets need: a name, a size of replies, and prices or None",
    "reply": "it gives one complete reply, with and without a sink, and says why it ended",
    "sink": "what the sink was told is what the reply says, and nothing comes after it",
    "ids": "each call has an id of its own, and a name",
    "usage": "usage is what the provider reported, and unknown where it reported nothing",
    "loop": "it does not keep the event loop from others",
    "leaves-nothing": "tasks, threads and child processes do not add up",
    "cancel": "a cancelled request ends within the grace, with CancelledError",
    "sink-after-cancel": "a sink is told nothing once the request was cancelled",
    "cut": "a stream that ends without its terminal signal is a failure, never a reply",
}
# Twice could be a pool that fills; growth over three replies is a leak.
ASKED = 3
FAILURES = ("connect", "status", "incomplete", "protocol", "timeout", "overflow", "auth", "error")
NO_PROFILE = "it has no ModelProfile"
# What a short reply may have; budgets of the request, not of the model. Tokens.
OUTPUT_TOKENS_MOST = 256
ECHO = ToolDefinition(
    "echo",
    "Give a text back.",
    '{"type":"object","properties":{"text":{"type":"string"}},"required":["text"],'
    '"additionalProperties":false}',
    effect=Effect.READ,
    digest="conformance",
)


class Heard(Struct):
    """What one reply brought, with the deltas its sink was told."""

    came: Came | None
    deltas: list[Delta]


async def check_model(
    model: Model,
    *,
    request: ModelRequest | None = None,
    cut: Model | None = None,
    run_seconds: float = Limits(steps=1).model_seconds,
    grace_seconds: float = Limits(steps=1).grace_seconds,
    settle_seconds: float = 0.2,
    pause_seconds: float = LOOP_PAUSE_MOST,
) -> Report:
    """What the model does about each of MODEL_RULES.

    `request` is what it is asked, by default for one word and, if it can, one call of a tool; `cut` is the same
    adapter before a provider whose stream ends half-way. `settle_seconds` is how long deltas are waited for that
    should not come, `pause_seconds` the longest for which a reply may keep the event loop. A model is asked about
    five times.
    """
    seconds = (run_seconds, grace_seconds, settle_seconds, pause_seconds)
    suite = _Suite(model, request, cut=cut, seconds=seconds)
    with keeping_orphans():
        before = children() or frozenset()
        findings = {found.rule: found async for found in suite.findings()}
        end((children() or frozenset()) - before)
    for rule in MODEL_RULES:
        findings.setdefault(rule, unchecked(rule, "there was no reply to look at"))
    return Report("model", suite.name, tuple(findings[rule] for rule in MODEL_RULES))


class _Suite:
    """The rules over one model; `seconds`: of a run, of the grace, of waiting for late deltas, of a pause."""

    def __init__(
        self,
        model: Model,
        request: ModelRequest | None,
        *,
        cut: Model | None,
        seconds: tuple[float, float, float, float],
    ) -> None:
        self.model, self.cut = model, cut
        self.run_seconds, self.grace_seconds, self.settle_seconds, self.pause_seconds = seconds
        self.name = type(model).__name__  # until its profile says another
        self.request = request
        self.runs = Runs(self.grace_seconds)
        self.pauses: list[float] = []
        self.left: list[Left] = []

    async def findings(self) -> AsyncIterator[Finding]:
        """One finding for each rule that could be looked at."""
        yield (profile := self._profile())
        if profile.said == NO_PROFILE:
            return
        heard = [await self._asked(with_sink=number > 0) for number in range(ASKED)]
        yield self._reply(heard)
        yield self._loop()
        yield await self._left()
        replies = [h.came.value for h in heard if h.came is not None and isinstance(h.came.value, Reply)]
        if replies:
            await asyncio.sleep(self.settle_seconds)
            yield self._sink(heard)
            yield self._ids(replies)
            yield self._usage(replies)
        async for found in self._cancelled():
            yield found
        yield await self._cut()

    def _asks(self, seconds: float) -> ModelRequest:
        if self.request is not None:
            return self.request
        profile = self.model.profile
        words = "Call the tool echo once with the text ready." if profile.calls_tools else "Say: ready."
        return ModelRequest(
            "This is a test of a connection. Do as you are asked, in as few words as you can.",
            (UserMessage(words),),
            (ECHO,) if profile.calls_tools else (),
            step=1,
            attempt=1,
            seconds=seconds,
            max_output_tokens=min(profile.max_output_tokens, OUTPUT_TOKENS_MOST),
        )

    async def _asked(self, *, with_sink: bool, model: Model | None = None) -> Heard:
        deltas: list[Delta] = []
        asked = self.model if model is None else model
        watch = LoopWatch()
        async with watch.watching():
            came = await self.runs.whole(
                lambda: asked.reply(self._asks(self.run_seconds), deltas.append if with_sink else None),
                seconds=self.run_seconds,
            )
        self.pauses.append(watch.longest)
        self.left.append(await self.runs.left())
        return Heard(came, deltas)

    def _profile(self) -> Finding:
        rule = "profile"
        try:
            profile = self.model.profile
        except Exception:  # noqa: BLE001 - foreign code
            return broken(rule, NO_PROFILE)
        if not is_a(profile, ModelProfile):
            return broken(rule, NO_PROFILE)
        self.name = profile.name
        if not profile.name:
            return broken(rule, "its profile has no name")
        if profile != self.model.profile:
            return broken(rule, "its profile differs from one time to the next, so budgets cannot rest on it")
        for name in ("bytes_per_token", "max_output_tokens"):
            if not _is_count(getattr(profile, name)) or getattr(profile, name) < 1:
                return broken(rule, f"its {name} is {getattr(profile, name)!r}; it must be 1 or more")
        for name in ("input_nano", "output_nano"):
            if (price := getattr(profile, name)) is not None and not _is_count(price):
                return broken(rule, f"its {name} is {price!r}; a price is a whole number, or None if unknown")
        return holds(rule, f"{profile.name} says what budgets need to know")

    def _reply(self, heard: list[Heard]) -> Finding:
        rule = "reply"
        for number, each in enumerate(heard):
            said = _reply_problem(each.came, self.run_seconds)
            if said is not None:
                return broken(rule, said + (" (without a sink)" if number == 0 else ""))
        return holds(rule, f"{len(heard)} replies came, each complete, with and without a sink")

    def _sink(self, heard: list[Heard]) -> Finding:
        rule = "sink"
        told = [each for each in heard if each.deltas and each.came is not None]
        if not told:
            return unchecked(rule, "the sink was told nothing, which is allowed")
        for each in told:
            assert each.came is not None
            if isinstance(each.came.value, Reply) and (said := _sink_problem(each.came.value, each.deltas)):
                return broken(rule, said)
        return holds(rule, "what the sink was told is what the replies say")

    def _ids(self, replies: list[Reply]) -> Finding:
        rule = "ids"
        if not any(reply.calls for reply in replies):
            return unchecked(rule, "it made no calls")
        for reply in replies:
            ids = [call.id for call in reply.calls]
            if any(not is_a(call, ToolCall) or not call.id or not call.name for call in reply.calls):
                return broken(
                    rule, "a call has no id or no name, so its result cannot be told from another's"
                )
            if len(set(ids)) < len(ids):
                return broken(rule, f"one reply has the id {ids[0]!r} twice; the whole reply is refused then")
        return holds(rule, "each call has an id of its own")

    def _usage(self, replies: list[Reply]) -> Finding:
        rule = "usage"
        for reply in replies:
            usage = reply.usage
            if usage is None:
                continue
            if not is_a(usage, Usage):
                return broken(rule, f"its usage is a {type(usage).__name__}; it must be a Usage or None")
            for name in usage.__struct_fields__:
                if (count := getattr(usage, name)) is not None and not _is_count(count):
                    return broken(
                        rule, f"its usage.{name} is {count!r}; it must be 0 or more, or None if unknown"
                    )
            if usage.input_tokens == 0:
                return broken(rule, "it reports 0 input tokens for a request that has words; unknown is None")
        if any(reply.usage is None or reply.usage.tokens is None for reply in replies):
            return holds(rule, "usage is unknown and says so; budgets then charge the worst case")
        return holds(rule, "input and output tokens are reported")

    def _loop(self) -> Finding:
        longest = min(self.pauses)
        if longest > self.pause_seconds:
            return broken("loop", f"it kept the event loop for {longest:.2g} s; await instead")
        return holds("loop", f"the event loop was never kept for longer than {self.pause_seconds:g} s")

    async def _left(self) -> Finding:
        """Whether later replies left more than the first one; what is only about to end has a little time."""
        rule, first = "leaves-nothing", self.left[0]
        if (await self.runs.left()).more_than(first) is not None:
            await asyncio.sleep(self.settle_seconds)
        if (more := (await self.runs.left()).more_than(first)) is not None:
            return broken(rule, f"each reply leaves more {more}")
        return holds(rule, f"{ASKED} replies left no more tasks, threads and processes than one")

    async def _cancelled(self) -> AsyncIterator[Finding]:
        deltas: list[Delta] = []
        stopped, came = await self.runs.cancelled(
            lambda: self.model.reply(self._asks(self.run_seconds), deltas.append), after=0.0
        )
        if not stopped:
            why = "the reply came at once, so there was nothing to cancel"
            yield unchecked("cancel", why)
            yield unchecked("sink-after-cancel", why)
            return
        told = len(deltas)
        if came is None:
            yield broken(
                "cancel", f"it went on for more than {self.grace_seconds:g} s after it was cancelled"
            )
        elif not came.cancelled:
            what = "a reply" if came.raised is None else describe(came.raised)
            yield broken("cancel", f"it ended with {what} although it was cancelled; let CancelledError pass")
        else:
            yield holds("cancel", f"it ended within {self.grace_seconds:g} s of being cancelled")
        await asyncio.sleep(self.settle_seconds)
        if len(deltas) > told:
            said = f"the sink was told {len(deltas) - told} more deltas after the request was cancelled"
            yield broken("sink-after-cancel", said)
        else:
            yield holds("sink-after-cancel", "the sink was told nothing after the request was cancelled")

    async def _cut(self) -> Finding:
        rule = "cut"
        if self.cut is None:
            return unchecked(rule, "give the same adapter before a provider whose stream ends half-way")
        heard = await self._asked(with_sink=True, model=self.cut)
        if heard.came is None:
            return broken(rule, f"it did not end within {self.run_seconds:g} s after the stream was cut")
        if heard.came.raised is None:
            return broken(rule, "a stream that ended half-way became a reply; raise ModelFailed instead")
        if (said := _failure_problem(heard.came.raised)) is not None:
            return broken(rule, said)
        return holds(rule, f"a cut stream is {describe(heard.came.raised)}")


def _reply_problem(came: Came | None, seconds: float) -> str | None:
    if came is None or came.seconds > seconds:
        return f"no reply came within {seconds:g} s"
    if came.raised is not None:
        wrong = _failure_problem(came.raised)
        return wrong or f"no reply came: {describe(came.raised)}"
    reply = came.value
    if not isinstance(reply, Reply):
        return f"it gave a {type(reply).__name__}, not a Reply"
    if not is_a(reply.finish, Finish):
        return f"its finish is {reply.finish!r}, not a Finish; what it cannot map is Finish.UNKNOWN"
    if reply.finish is Finish.UNKNOWN and not reply.provider_finish:
        return "its finish is unknown and provider_finish does not say what the provider sent"
    if reply.finish in EXECUTABLE_FINISHES and not reply.calls and not reply.text.strip():
        return "a reply that ended well holds neither words nor calls"
    return None


def _failure_problem(raised: BaseException) -> str | None:
    if not isinstance(raised, ModelFailed):
        return f"it raised {describe(raised)}; a failure of a model is a ModelFailed that says its kind"
    if raised.kind not in FAILURES:
        return f"its failure has the kind {raised.kind!r}, not one of {', '.join(FAILURES)}"
    pause: object = raised.retry_after
    if pause is not None and not (isinstance(pause, (int, float)) and 0 <= pause < math.inf):
        return f"its failure says retry_after {pause!r}; it must be seconds, or None"
    return None


def _sink_problem(reply: Reply, deltas: list[Delta]) -> str | None:
    text = "".join(delta.text for delta in deltas if delta.kind == "text")
    if text and text != reply.text:
        return f"the sink was told {len(text)} characters of text, and the reply has {len(reply.text)} others"
    arguments: dict[int, str] = {}
    for delta in deltas:
        if delta.kind == "arguments":
            arguments[delta.index] = arguments.get(delta.index, "") + delta.text
        elif delta.kind not in ("text", "reasoning", "call"):
            return f"a delta has the kind {delta.kind!r}"
    for index, told in arguments.items():
        if index >= len(reply.calls) or told != reply.calls[index].arguments:
            return f"the sink was told other arguments of call {index} than the reply has"
    return None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
