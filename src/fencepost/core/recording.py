"""What a model said once, read back from the facts of a journal: the journal is a script.

Rule: a journal keeps what was looked at, not what arrived. What it keeps cut (refused arguments, answers that were
no answers) comes back cut; everything else comes back as the model sent it or as the same JSON.
"""

from __future__ import annotations

import re

from fencepost.core.entries import AdmittedCall, AttemptFailed, ModelAsked, Replied
from fencepost.core.errors import ModelFailed
from fencepost.core.messages import Reply, ToolCall, Usage
from fencepost.core.state import ANSWER_TOOL

_SEVERAL_ANSWERS = re.compile(r"(\d{1,3}) answers in one reply")


def reply_of(entry: Replied) -> Reply:
    """The reply that the entry was made of."""
    calls = [_call_of(call) for call in entry.calls]
    if entry.answer_sent_id:
        several = _SEVERAL_ANSWERS.match(entry.answer_problem)
        copies = int(several[1]) if several else 1
        calls += [ToolCall(entry.answer_id, ANSWER_TOOL, entry.answer_arguments)] * copies
    return Reply(
        entry.text, tuple(calls), entry.finish, usage=entry.usage, opaque=entry.opaque, model=entry.model
    )


def failure_of(entry: AttemptFailed, asked: ModelAsked | None) -> ModelFailed:
    """The error that the entry was made of; it says the same and charges the same."""
    name, _, words = entry.detail.partition(": ")
    kind = type(name, (ModelFailed,), {}) if name.isidentifier() else ModelFailed
    charged = entry.charged_tokens, entry.charged_nano
    reserved = (0, None) if asked is None else (asked.reserved_tokens, asked.reserved_nano)
    usage = None if charged == reserved else Usage(entry.charged_tokens, 0, cost_nano=entry.charged_nano)
    error = kind(
        words if kind is not ModelFailed else entry.detail,
        kind=entry.kind,
        retriable=entry.retry_in is not None,
        status=entry.status,
        retry_after=entry.retry_in,
        usage=usage,
    )
    assert isinstance(error, ModelFailed)
    return error


def _call_of(call: AdmittedCall) -> ToolCall:
    return ToolCall(call.id, call.name, call.arguments if call.refusal is None else call.refusal.raw)
