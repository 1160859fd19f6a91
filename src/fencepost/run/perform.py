"""What came of one effect in the world, as a value.

A tool that raises anything, its own CancelledError included, makes one failed call and never a dead run
(contract 5.2). What an effect brought becomes the body of an entry here; nothing is committed here.
"""

from __future__ import annotations

import asyncio
import enum
import random
from typing import Any

from msgspec import Struct

from fencepost.core.entries import AttemptFailed, CallEnded, CallStatus
from fencepost.core.errors import ArgumentsInvalid, ModelFailed, ToolFailed
from fencepost.core.limits import LARGEST, Limits
from fencepost.core.state import RELEASED, State
from fencepost.core.values import stored
from fencepost.ports import CallContext, Prepared, Reconciled, Tool
from fencepost.run.admission import believable, charge
from fencepost.run.foreign import DETAIL_CHARS_MOST, describe, words_of

# The pause before another attempt where the provider named none: doubled each time, with jitter.
BACKOFF_SECONDS = 0.5


class Lost(enum.Enum):
    """Why the end of an effect was not waited for any longer."""

    TIMEOUT = "timeout"
    RELEASE = "release"
    FENCED = "fenced"
    UNKNOWN = "unknown"


class Raised(Struct, frozen=True):
    """A foreign exception, caught."""

    error: BaseException


class Returned(Struct, frozen=True, gc=False):
    """A value, not yet looked at."""

    value: Any


Outcome = Returned | Raised | Lost


def is_cancelled(outcome: Outcome) -> bool:
    """Whether an effect ended with nothing but its own cancellation."""
    return isinstance(outcome, Raised) and isinstance(outcome.error, asyncio.CancelledError)


class Call(Struct, frozen=True, gc=False):
    """One start of one call: what is needed to run it and to say what came of it."""

    tool: Tool
    prepared: Prepared
    context: CallContext
    operation: str


def ended(call: Call, outcome: Returned | Raised, limits: Limits) -> tuple[CallEnded, bytes | None]:
    """The result of a call that came to its own end, and the whole value when the model sees it cut."""
    if isinstance(outcome, Raised):
        return _failed(call, outcome.error, limits), None
    value = stored(outcome.value, limit=limits.result_bytes)
    body = CallEnded(
        call.context.step,
        call.context.position,
        CallStatus.OK,
        value.text,
        json=value.json,
        digest=value.digest,
        size_bytes=value.size_bytes,
        cut=value.cut,
        artifact=value.digest if value.whole is not None else "",
        synthetic=value.synthetic,
    )
    return body, value.whole


def _failed(call: Call, error: BaseException, limits: Limits) -> CallEnded:
    if isinstance(error, ToolFailed):
        said, failure = words_of(error), "tool_error"
    elif isinstance(error, ArgumentsInvalid):
        said, failure = words_of(error), "invalid_arguments"
    else:
        said, failure = f"{call.tool.definition.name} failed with {describe(error)}", "tool_error"
    text = stored(said, limit=min(DETAIL_CHARS_MOST, limits.result_bytes))
    return CallEnded(
        call.context.step,
        call.context.position,
        CallStatus.FAILED,
        text.text,
        failure=failure,
        digest=text.digest,
        size_bytes=text.size_bytes,
    )


def refused(step: int, position: int, tool: str, error: Exception) -> CallEnded:
    """The result of a call whose arguments the tool took when they were admitted, and does not take now."""
    invalid = isinstance(error, ArgumentsInvalid)
    said = f"{tool} did not take the arguments: {describe(error)}"
    failure = "invalid_arguments" if invalid else "tool_error"
    return CallEnded(step, position, CallStatus.FAILED, said, failure=failure)


def timed_out(call: Call) -> CallEnded:
    """The result of a call that may be made again and did not end in time."""
    context = call.context
    said = f"{call.tool.definition.name} did not end within {context.seconds:g} s"
    return CallEnded(context.step, context.position, CallStatus.TIMEOUT, said, failure="timeout")


def attempt_failed(state: State, outcome: Raised | Lost, seconds: float) -> AttemptFailed:
    """The entry about an attempt that brought no reply, with what it is charged (contract 2.1)."""
    asked = state.asked
    assert asked is not None
    if isinstance(outcome, Lost):
        released = outcome is Lost.RELEASE
        return AttemptFailed(
            asked.step,
            asked.attempt,
            RELEASED if released else "timeout",
            "the worker shut down" if released else f"no reply within {seconds:g} s",
            retry_in=0.0 if released else None,
            charged_tokens=asked.reserved_tokens,
            charged_nano=asked.reserved_nano,
        )
    error = outcome.error
    if not isinstance(error, ModelFailed):
        error = ModelFailed(describe(error), kind="error")
    tokens, nano = charge(believable(error.usage), state)
    return AttemptFailed(
        asked.step,
        asked.attempt,
        error.kind,
        describe(outcome.error),
        status=error.status,
        retry_in=_pause(error, asked.attempt) if error.retriable else None,
        charged_tokens=tokens,
        charged_nano=nano,
    )


def _pause(error: ModelFailed, attempt: int) -> float:
    if error.retry_after is not None and error.retry_after >= 0:
        return min(float(error.retry_after), LARGEST)
    return BACKOFF_SECONDS * 2.0 ** (attempt - 1) * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load


def reconciled(outcome: Outcome) -> Reconciled:
    """A tool's word on a lost start; anything but a plain verdict is "cannot_tell"."""
    word = outcome.value if isinstance(outcome, Returned) else None
    if isinstance(word, Reconciled) and word.verdict in ("happened", "did_not_happen"):
        return word
    return Reconciled("cannot_tell")
