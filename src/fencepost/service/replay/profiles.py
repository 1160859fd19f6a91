"""The model's profile, which no entry keeps, worked out from what was reserved for each request."""

from __future__ import annotations

from fractions import Fraction

from fencepost.core.eliding import ROOM_DENOMINATOR, ROOM_NUMERATOR
from fencepost.core.entries import ContextElided, EntryBody, ModelAsked, Replied, Stopped
from fencepost.core.lifecycle import StopReason
from fencepost.core.messages import ModelProfile
from fencepost.core.state import State
from fencepost.service.replay.restoring import outside_ascii
from fencepost.service.replay.script import Script

# Bytes per token that a profile may state; the default first, because short journals fit several.
_CANDIDATES = (3, 4, 2, 1, *range(5, 17))


def profile_of(script: Script, name: str) -> ModelProfile:
    """A profile under which the same tokens and money are reserved; free of charge where nothing tells more."""
    asked = [
        (at, entry.body)
        for at, entry in enumerate(script.entries)
        if isinstance(entry.body, ModelAsked) and entry.body.model in (name, "")
    ]
    calls_tools = not any(
        isinstance(entry.body, Replied) and entry.body.answer is not None and not entry.body.answer_sent_id
        for entry in script.entries
    )
    last = script.entries[-1].body
    unpriced = isinstance(last, Stopped) and last.reason is StopReason.UNKNOWN_PRICE
    for per_token in _CANDIDATES:
        needs = [(_prompt(script, at, per_token), _left(script, at), body) for at, body in asked]
        most = max((body.reserved_tokens - prompt for prompt, _, body in needs), default=4096)
        if most > 0 and all(
            _is_near(prompt + min(most, left - prompt), body, script.states[at])
            for (prompt, left, body), (at, _) in zip(needs, asked, strict=True)
        ):
            told = [(p, body.reserved_tokens - p, body.reserved_nano) for p, _, body in needs]
            prices = (None, None) if unpriced else _prices([*told, *_charged(script)])
            fits = _fits(script, per_token)
            context = _said(last) or (None if fits is None else fits + most)
            return ModelProfile(
                name, per_token, most, *prices, calls_tools=calls_tools, context_tokens=context
            )
    return ModelProfile(name, input_nano=0, output_nano=0, calls_tools=calls_tools)


def _is_near(reserved: int, body: ModelAsked, state: State) -> bool:
    more = reserved - body.reserved_tokens
    return more == 0 or 0 < more <= outside_ascii(state)


def _prompt(script: Script, at: int, per_token: int) -> int:
    state = script.states[at]
    return state.input_tokens + -(-(state.size_bytes - state.sized_bytes) // per_token)


def _fits(script: Script, per_token: int) -> int | None:
    """The most tokens of a request under which the same results are left out; None where none were."""
    bounds, before = [], False
    for at, entry in enumerate(script.entries):
        elided = isinstance(entry.body, ContextElided)
        if elided:
            prompt = _prompt(script, at, per_token)
            # The first of them went because the request did not fit, each because there was not room enough yet.
            bounds.append((ROOM_DENOMINATOR * prompt - 1) // ROOM_NUMERATOR if before else prompt - 1)
        before = elided
    return min(bounds, default=None)


def _said(last: EntryBody) -> int | None:
    """What a stop because of the context says that the model takes, in tokens."""
    if not isinstance(last, Stopped) or last.reason is not StopReason.CONTEXT_OVERFLOW:
        return None
    said = last.detail.rpartition(" takes ")[2]
    return int(said) if said.isdecimal() else None


def _left(script: Script, at: int) -> int:
    state = script.states[at]
    assert state.opened is not None
    return state.opened.limits.tokens - state.tokens


def _charged(script: Script) -> list[tuple[int, int, int | None]]:
    """What replies cost whose price was worked out, not reported: (input, output, nano-units)."""
    return [
        (usage.input_tokens, usage.output_tokens, body.charged_nano)
        for entry in script.entries
        if isinstance(body := entry.body, Replied)
        and (usage := body.usage) is not None
        and usage.input_tokens is not None
        and usage.output_tokens is not None
        and usage.cost_nano is None
    ]


def _prices(reserved: list[tuple[int, int, int | None]]) -> tuple[int | None, int | None]:
    """(input, output) prices in nano-units per token that give these costs."""
    known = [(p, o, cost) for p, o, cost in reserved if cost is not None]
    if not known:
        return None, None
    first = known[0]
    for other in known[1:]:
        determinant = first[0] * other[1] - other[0] * first[1]
        if determinant:
            into = Fraction(first[2] * other[1] - other[2] * first[1], determinant)
            out = Fraction(first[0] * other[2] - other[0] * first[2], determinant)
            if into.denominator == out.denominator == 1:
                return int(into), int(out)
    for out_nano in range(first[2] // first[1] + 1 if first[1] and first[2] < 10**6 else 1):
        rest = first[2] - out_nano * first[1]
        if first[0] and rest % first[0] == 0:
            return rest // first[0], out_nano
    return 0, 0
