"""From a reply to a checked structure: the `Replied` entry, in which every call has been looked at.

Each call either carries its canonical arguments, their digest and the boundary's verdict, or a refusal. Nothing of
the reply runs here, and nothing that failed here ever will (contract 4.4).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from msgspec import structs
from msgspec.structs import replace

from fencepost.core.entries import AdmittedCall, Refusal, Replied, Verdict
from fencepost.core.errors import ArgumentsInvalid
from fencepost.core.evidence import parse_answer
from fencepost.core.messages import EXECUTABLE_FINISHES, Finish, Reply, ToolCall, Usage
from fencepost.core.state import ANSWER_TOOL, State
from fencepost.core.strictjson import MAX_BYTES
from fencepost.core.values import writable
from fencepost.ports import Boundary, Prepared, Tool
from fencepost.run.foreign import authorized, describe, text_of

# Contract 3.4: longer ids are no ids.
ID_CHARS_MOST = 256
# Contract 4.4: refused text is stored cut, with the digest of the whole.
REFUSED_CHARS_KEPT = 1024
# Contract 4.4: what the model is told of a refused call stays under 4 KiB.
REFUSAL_BYTES_MOST = 4000
# L06: more names than this help nobody.
TOOL_NAMES_TOLD_MOST = 50
NAME_CHARS_KEPT = 128

# Looking a word up is several times cheaper than calling the enum.
_VERDICTS = {verdict.value: verdict for verdict in Verdict}
_NO_PREPARED: dict[int, Prepared] = {}


def admit(
    reply: Reply,
    state: State,
    *,
    tools: Mapping[str, Tool],
    boundary: Boundary,
    principal: str,
    step: int,
    attempt: int,
) -> tuple[Replied, dict[int, Prepared]]:
    """The reply as an entry, and the prepared arguments of the calls that may run, by position."""
    usage = believable(reply.usage)
    charged_tokens, charged_nano = charge(usage, state)
    cited = state.opened is not None and state.opened.answer == "cited"
    finish = _finish(reply.finish)
    executable = finish is Finish.TOOL_CALLS or finish is Finish.STOP
    answers = [c for c in reply.calls if c.name == ANSWER_TOOL] if cited else []
    ordinary = tuple(c for c in reply.calls if c.name != ANSWER_TOOL) if answers else reply.calls
    calls: list[AdmittedCall] = []
    prepared = {} if ordinary else _NO_PREPARED
    sent: set[str] = set()
    for position, call in enumerate(ordinary):
        given = _given_id(call.id)
        sent_id = _sent_id(call.id, given, state, sent, step=step, position=position)
        admitted, may_run = _look_at(
            call, tools, boundary, principal, given=given, sent_id=sent_id, executable=executable
        )
        calls.append(admitted)
        if may_run is not None:
            prepared[position] = may_run
    entry = Replied(
        step,
        attempt,
        finish,
        text=writable(reply.text),
        calls=tuple(calls),
        usage=usage,
        charged_tokens=charged_tokens,
        charged_nano=charged_nano,
        opaque=tuple(reply.opaque),
        model=writable(reply.model),
    )
    if not cited:
        return entry, prepared
    return _with_answer(entry, reply, answers, state, sent), prepared


def _finish(said: object) -> Finish:
    """The finish of a reply; a word that is none of ours is unknown, and executes nothing (contract 3.2)."""
    if type(said) is Finish:
        return said
    return Finish(said) if isinstance(said, str) and said in tuple(Finish) else Finish.UNKNOWN


def believable(usage: Usage | None) -> Usage | None:
    """The usage without what no provider can mean: less than nothing is unknown, so it refunds no budget."""
    if usage is None:
        return None
    said = structs.astuple(usage)
    for number in said:
        if number is not None and number < 0:
            return Usage(*(None if n is not None and n < 0 else n for n in said))
    return usage


def charge(usage: Usage | None, state: State) -> tuple[int, int | None]:
    """What a reply costs: what the provider reported, or the whole reservation where it did not say."""
    asked, profile = state.asked, state.profile
    reserved = 0 if asked is None else asked.reserved_tokens
    reserved_nano = None if asked is None else asked.reserved_nano
    if usage is None or usage.input_tokens is None or usage.output_tokens is None:
        known = None if usage is None else usage.cost_nano
        return reserved, reserved_nano if known is None else known
    if usage.cost_nano is not None:
        return usage.input_tokens + usage.output_tokens, usage.cost_nano
    cost = None if profile is None else profile.cost(usage.input_tokens, usage.output_tokens)
    return usage.input_tokens + usage.output_tokens, cost


def _given_id(given: object) -> str:
    """The id as it came, "" for one that is none (contract 3.4)."""
    return writable(given) if isinstance(given, str) and len(given) <= ID_CHARS_MOST else ""


def _sent_id(came: object, given: str, state: State, sent: set[str], *, step: int, position: int) -> str:
    """The id that goes back to the provider: what came if that is usable, else one that replays the same."""
    ids = state.ids
    if given and given == came and given not in sent and not ids.has(given):
        sent.add(given)
        return given
    minted, tail = f"fp-{step}-{position}", 0
    while minted in sent or ids.has(minted):
        tail += 1
        minted = f"fp-{step}-{position}-{tail}"
    sent.add(minted)
    return minted


def _look_at(
    call: ToolCall,
    tools: Mapping[str, Tool],
    boundary: Boundary,
    principal: str,
    *,
    given: str,
    sent_id: str,
    executable: bool,
) -> tuple[AdmittedCall, Prepared | None]:
    tool = tools.get(call.name)
    if tool is None:
        return _unknown(call, given, sent_id, tools), None
    if not executable:  # nothing of it may run, so its arguments are only kept
        return _refused(call, given, sent_id, "not_executed", "not executed"), None
    try:
        prepared = tool.prepare(call.arguments)
    except ArgumentsInvalid as why:
        return _refused(call, given, sent_id, "invalid_arguments", str(why)), None
    except Exception as error:  # noqa: BLE001 - foreign code: what cannot look at arguments does not get them
        return _refused(call, given, sent_id, "invalid_arguments", f"not checked: {describe(error)}"), None
    verdict = authorized(boundary, principal, tool.definition, prepared.canonical)
    admitted = AdmittedCall(
        given,
        sent_id,
        call.name,
        prepared.canonical,
        prepared.digest,
        verdict=_VERDICTS[verdict.verdict],
        rules=verdict.rules,
        reason=verdict.reason,
    )
    return admitted, prepared


def _unknown(call: ToolCall, given: str, sent_id: str, tools: Mapping[str, Tool]) -> AdmittedCall:
    names = sorted(tools)
    told = ", ".join(names[:TOOL_NAMES_TOLD_MOST]) or "none"
    more = f" and {len(names) - TOOL_NAMES_TOLD_MOST} more" if len(names) > TOOL_NAMES_TOLD_MOST else ""
    name = text_of(call.name)
    return _refused(
        call,
        given,
        sent_id,
        "unknown_tool",
        f"there is no tool {name[:NAME_CHARS_KEPT]!r}; tools: {told}{more}",
    )


def _refused(call: ToolCall, given: str, sent_id: str, kind: str, message: str) -> AdmittedCall:
    raw = text_of(call.arguments, otherwise=repr(type(call.arguments)))
    data = raw.encode("utf-8", "replace")
    name = writable(text_of(call.name))[:NAME_CHARS_KEPT]
    refusal = Refusal(
        kind,
        _cut(message, REFUSAL_BYTES_MOST),
        raw=_cut(raw[:REFUSED_CHARS_KEPT], REFUSED_CHARS_KEPT),
        raw_digest=hashlib.sha256(data).hexdigest(),
        raw_bytes=len(data),
    )
    return AdmittedCall(given, sent_id, name, refusal=refusal, verdict=Verdict.DENY)


def _cut(text: str, bytes_most: int) -> str:
    """Text a store can hold, at most so many bytes of UTF-8; no code point is split."""
    return writable(text).encode()[:bytes_most].decode("utf-8", "ignore")


def _with_answer(
    entry: Replied, reply: Reply, answers: list[ToolCall], state: State, sent: set[str]
) -> Replied:
    """The entry with the reply's cited answer, or with what is wrong with it (contract 10.1)."""
    if entry.finish not in EXECUTABLE_FINISHES:
        return entry
    if not answers:
        if reply.calls or not reply.text.strip():
            return entry
        if state.profile is not None and not state.profile.calls_tools:
            return _parsed(entry, reply.text)
        return replace(
            entry, answer_problem="plain text is no answer here; call the tool answer with citations"
        )
    first = answers[0]
    given = _given_id(first.id)
    sent_id = _sent_id(first.id, given, state, sent, step=entry.step, position=len(entry.calls))
    entry = replace(entry, answer_id=given, answer_sent_id=sent_id, answer_arguments="{}")
    if len(answers) > 1:
        return replace(entry, answer_problem=f"{len(answers)} answers in one reply; give one")
    return _parsed(entry, first.arguments, from_call=True)


def _parsed(entry: Replied, text: object, *, from_call: bool = False) -> Replied:
    if not isinstance(text, str):
        return replace(entry, answer_problem="the arguments of answer are no text")
    if len(text) > MAX_BYTES:
        return replace(entry, answer_problem=f"the answer is longer than {MAX_BYTES} bytes")
    try:
        answer = parse_answer(text)
    except ArgumentsInvalid as why:
        return replace(entry, answer_problem=str(why))
    return replace(entry, answer=answer, answer_arguments=text.strip() if from_call else "")
