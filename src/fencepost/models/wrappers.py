"""Models around a model: a meter, a deadline, and faults on purpose.

The loop does not know what is behind `Model`, so each of these is one, and they may be put around each other.
Rule 1: a wrapper changes no request, and passes deltas on as they come.
Rule 2: unknown stays unknown: one reply without usage makes the total unknown, never smaller (contract 6.5).
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from fencepost.core.errors import ModelFailed
from fencepost.core.messages import Finish, ModelProfile, ModelRequest, Reply, ToolCall
from fencepost.ports import Model, Sink


class Meter(Struct, frozen=True):
    """What a model was asked for so far. Tokens and nano-units of money are None where one call did not say.

    `failures` counts calls that raised, cancelled ones included; nobody knows what those used, so the totals
    are of the replies.
    """

    calls: int = 0
    failures: int = 0
    input_tokens: int | None = 0
    output_tokens: int | None = 0
    cost_nano: int | None = 0


class MeteredModel:
    """Adds up what the model behind it is asked for; `meter` is the sum so far."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.meter = Meter()

    @property
    def profile(self) -> ModelProfile:
        """The profile of the model behind it."""
        return self._model.profile

    async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
        """The model's reply, counted."""
        self.meter = replace(self.meter, calls=self.meter.calls + 1)
        try:
            reply = await self._model.reply(request, sink)
        except BaseException:
            self.meter = replace(self.meter, failures=self.meter.failures + 1)
            raise
        self._add(reply)
        return reply

    def _add(self, reply: Reply) -> None:
        meter, usage = self.meter, reply.usage
        given = usage.input_tokens if usage is not None else None
        made = usage.output_tokens if usage is not None else None
        cost = usage.cost_nano if usage is not None else None
        if cost is None and given is not None and made is not None:
            cost = self.profile.cost(given, made)
        self.meter = replace(
            meter,
            input_tokens=_sum(meter.input_tokens, given),
            output_tokens=_sum(meter.output_tokens, made),
            cost_nano=_sum(meter.cost_nano, cost),
        )


def _sum(total: int | None, more: int | None) -> int | None:
    return None if total is None or more is None else total + more


class TimeoutModel:
    """Gives up on the model behind it after `seconds`, with ModelFailed of kind "timeout".

    Tighter than `Limits.model_seconds`, which ends the attempt whatever the model does.
    """

    def __init__(self, model: Model, *, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"a model needs more than 0 seconds, got {seconds!r}")
        self._model, self._seconds = model, seconds

    @property
    def profile(self) -> ModelProfile:
        """The profile of the model behind it."""
        return self._model.profile

    async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
        """The model's reply, if it comes in time."""
        deadline = asyncio.timeout(self._seconds)
        try:
            async with deadline:
                return await self._model.reply(request, sink)
        except TimeoutError as why:
            if not deadline.expired():  # the model's own, which the loop has to see
                raise
            raise ModelFailed(
                f"{self.profile.name} gave no reply within {self._seconds:g} s", kind="timeout"
            ) from why


class Fault(enum.Enum):
    """What can be wrong with one call of a model. The last five change the reply that did come."""

    BUSY = "a failure that may be tried again (429)"
    DOWN = "a failure that may not be tried again (401)"
    HANGS = "no reply, ever"
    TRUNCATED = "the reply ended by its length"
    REFUSED = "the provider refused"
    EMPTY = "a reply that holds nothing"
    DUPLICATE_IDS = "every call has the same id"
    MALFORMED_ARGUMENTS = "arguments that are no JSON"


class FaultyModel:
    """Puts a fault into chosen calls of the model behind it: `faults` says which, by number from 1.

    Deterministic: the same calls in the same order meet the same faults.
    """

    def __init__(self, model: Model, *, faults: Mapping[int, Fault]) -> None:
        if any(number < 1 for number in faults):
            raise ValueError(f"calls are numbered from 1; got faults at {sorted(faults)}")
        self._model, self._faults = model, dict(faults)
        self.calls = 0

    @property
    def profile(self) -> ModelProfile:
        """The profile of the model behind it."""
        return self._model.profile

    async def reply(self, request: ModelRequest, sink: Sink | None, /) -> Reply:
        """The model's reply, or the fault of this call."""
        self.calls += 1
        fault = self._faults.get(self.calls)
        if fault is Fault.BUSY:
            raise ModelFailed("too many requests", kind="status", status=429, retriable=True, retry_after=0.0)
        if fault is Fault.DOWN:
            raise ModelFailed("this key is not known", kind="auth", status=401)
        if fault is Fault.HANGS:
            await asyncio.get_running_loop().create_future()
        reply = await self._model.reply(request, sink)
        return reply if fault is None else _spoilt(reply, fault)


def _spoilt(reply: Reply, fault: Fault) -> Reply:
    match fault:
        case Fault.TRUNCATED:
            return replace(reply, finish=Finish.LENGTH)
        case Fault.REFUSED:
            return replace(reply, finish=Finish.REFUSAL)
        case Fault.EMPTY:
            return replace(reply, text="", calls=(), finish=Finish.STOP)
        case Fault.DUPLICATE_IDS:
            return replace(reply, calls=tuple(ToolCall("same", c.name, c.arguments) for c in reply.calls))
        case Fault.MALFORMED_ARGUMENTS:
            return replace(reply, calls=tuple(ToolCall(c.id, c.name, c.arguments[:-1]) for c in reply.calls))
    raise AssertionError(f"{fault} ends a call before there is a reply")
