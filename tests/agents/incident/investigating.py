"""What tests of the whole agent share: its journal as bodies, and a check of every claim and number.

Rule: the check is written here again, from the words of contract 10.2, and not borrowed from what is tested.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from fencepost import Result, ToolMessage
from fencepost.core.entries import CallEnded, CallStarted, CallStatus, EntryBody, Replied, encode_body

NUMBER = re.compile(r"\d+(?:\.\d+)*")


def bodies(result: Result) -> list[EntryBody]:
    return [entry.body for entry in result.entries]


def encoded(result: Result) -> list[bytes]:
    """The bodies as the hash chain covers them."""
    return [encode_body(body) for body in bodies(result)]


def asked(result: Result) -> list[tuple[str, dict[str, Any]]]:
    """Every call the model made, the answer aside, with its arguments."""
    return [
        (call.name, json.loads(call.arguments))
        for body in bodies(result)
        if isinstance(body, Replied)
        for call in body.calls
    ]


def ended(result: Result, tool: str) -> list[CallEnded]:
    """The results of one tool's calls, in order."""
    names = {
        (body.step, position): call.name
        for body in bodies(result)
        if isinstance(body, Replied)
        for position, call in enumerate(body.calls)
    }
    return [b for b in bodies(result) if isinstance(b, CallEnded) and names[b.step, b.position] == tool]


def started(result: Result) -> int:
    return sum(isinstance(body, CallStarted) for body in bodies(result))


def told(result: Result) -> list[str]:
    """What the model was told of its calls, in order."""
    return [message.content for message in result.messages if isinstance(message, ToolMessage)]


def check_answer(result: Result) -> None:
    """Every claim is a value of a successful result of this task; every number of the summary is in one."""
    answer = result.answer
    assert answer is not None
    evidence = {
        f"ev-{body.step}.{body.position}": json.loads(body.content)
        for body in bodies(result)
        if isinstance(body, CallEnded) and body.status is CallStatus.OK
    }
    assert answer.claims
    assert set(answer.evidence_ids) == {claim.evidence_id for claim in answer.claims} <= set(evidence)
    shown = result.row.prompt
    for claim in answer.claims:
        value: Any = evidence[claim.evidence_id]
        for part in (claim.pointer or "").split("/")[1:]:
            value = value[int(part)] if isinstance(value, list) else value[part]
        said = msgspec.json.decode(claim.value)
        assert (isinstance(said, bool), said) == (isinstance(value, bool), value)
        shown += f"\n{bytes(claim.value).decode()}"
    assert _numbers(answer.summary) <= _numbers(shown)


def _numbers(text: str) -> set[str]:
    """The numbers in a text; 26.0 is 26, v2.4.0 stays as it is."""
    return {found.removesuffix(".0") if found.count(".") == 1 else found for found in NUMBER.findall(text)}
