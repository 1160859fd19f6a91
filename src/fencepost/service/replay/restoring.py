"""What of a fact came from outside is put back from the record before the fact counts.

Rule: only what a run cannot make again is restored: times, jitter, the words of rules, results, and what the journal
keeps cut. Everything else stays as the replay made it, so that it can differ.
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from fencepost.core.entries import (
    AdmittedCall,
    ApprovalAsked,
    AttemptFailed,
    CallEnded,
    CallStatus,
    EntryBody,
    ModelAsked,
    OutcomeResolved,
    Replied,
)
from fencepost.core.messages import AssistantMessage, ToolMessage, UserMessage, bytes_of
from fencepost.core.state import State
from fencepost.service.replay.script import Script

# The ends of calls that a tool or its deadline brought; all others are worded by the program itself.
_FROM_TOOLS = frozenset(
    {
        (CallStatus.OK, ""),
        (CallStatus.FAILED, "tool_error"),
        (CallStatus.FAILED, "invalid_arguments"),
        (CallStatus.TIMEOUT, "timeout"),
    }
)


def restored(body: EntryBody, script: Script, state: State, *, results: bool) -> EntryBody:
    """The body with what the world said then; `results` False leaves what tools say now."""
    was = next((one for one in script.rest() if _is_about_the_same(one, body)), None)
    match body, was:
        case Replied(), Replied():
            return _reply(body, was)
        case AttemptFailed(), AttemptFailed():
            return _failure(body, was)
        case CallEnded(), CallEnded() if results:
            return _result(body, was)
        case OutcomeResolved(), OutcomeResolved():
            same = (was.verdict, was.source) == (body.verdict, body.source)
            return was if same else replace(body, by=was.by)
        case ApprovalAsked(), ApprovalAsked():
            return _asks(body, was)
        case ModelAsked(), ModelAsked() if body.reserved_tokens != was.reserved_tokens:
            return _reservation(body, was, state)
        case _:
            return body


def _is_about_the_same(one: EntryBody, body: EntryBody) -> bool:
    if type(one) is not type(body):
        return False
    names = ("step", "attempt", "position")
    return all(getattr(one, name, None) == getattr(body, name, None) for name in names)


def _reply(body: Replied, was: Replied) -> Replied:
    if len(was.calls) == len(body.calls):
        calls = tuple(map(_call, body.calls, was.calls))
        body = replace(body, calls=calls)
    if body.answer_problem and was.answer_problem:
        body = replace(body, answer_problem=was.answer_problem)
    return body


def _call(call: AdmittedCall, was: AdmittedCall) -> AdmittedCall:
    if call.refusal is None and was.refusal is None:
        return replace(call, verdict=was.verdict, rules=was.rules, reason=was.reason)
    if call.refusal is not None and was.refusal is not None and call.refusal.raw == was.refusal.raw:
        whole = (was.refusal.raw_digest, was.refusal.raw_bytes)  # the refused text is kept cut
        return replace(call, refusal=replace(call.refusal, raw_digest=whole[0], raw_bytes=whole[1]))
    return call


def _failure(body: AttemptFailed, was: AttemptFailed) -> AttemptFailed:
    both = body.retry_in is not None and was.retry_in is not None
    return replace(body, retry_in=was.retry_in) if both else body


def _reservation(body: ModelAsked, was: ModelAsked, state: State) -> ModelAsked:
    if not 0 < body.reserved_tokens - was.reserved_tokens <= outside_ascii(state):
        return body
    return replace(body, reserved_tokens=was.reserved_tokens, reserved_nano=was.reserved_nano)


def outside_ascii(state: State) -> int:
    """By how many bytes a request is longer than its characters: the first journals reserved for characters."""
    texts = [state.instructions]
    for message in state.messages:
        match message:
            case UserMessage():
                texts.append(message.text)
            case ToolMessage():
                texts.append(message.content)
            case AssistantMessage():
                texts += (message.text, *(call.arguments for call in message.calls))
            case _:
                assert_never(message)
    return sum(bytes_of(text) - len(text) for text in texts)


def _result(body: CallEnded, was: CallEnded) -> CallEnded:
    same = (body.status, body.failure) == (was.status, was.failure)
    whole = (
        body.status is CallStatus.OK and not was.cut
    )  # it is made again: its digest tells whether it is whole
    return was if same and not whole and (body.status, body.failure) in _FROM_TOOLS else body


def _asks(body: ApprovalAsked, was: ApprovalAsked) -> ApprovalAsked:
    if len(was.asks) != len(body.asks):
        return body
    asks = tuple(
        replace(ask, expires_at=then.expires_at)
        if ask.expires_at is not None and then.expires_at is not None
        else ask
        for ask, then in zip(body.asks, was.asks, strict=True)
    )
    return ApprovalAsked(asks)
