"""Reads a journal by the words of the contract and says what is wrong with it.

Rule 1: it shares nothing with `apply` and `decide` but the entries: it is their judge, so it reads anew.
Rule 2: it is folded entry by entry, so that a journal of which only the end is new costs one entry.
Rule 3: a broken rule has a short name (`RULES` says what it means); the search reports the name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fencepost.core.entries import (
    ApprovalAsked,
    ApprovalDecided,
    AttemptFailed,
    CallEnded,
    CallStarted,
    CallStatus,
    EntryBody,
    ModelAsked,
    Opened,
    OutcomeResolved,
    Replied,
    Stopped,
    Verdict,
)
from fencepost.core.lifecycle import StopReason
from fencepost.core.messages import Effect

# Contract 2.1: attempts to get one reply, those that a crash ended included.
ATTEMPTS_MOST = 3

RULES = {
    "entry 1": "Opened is the first entry and only the first",
    "over": "nothing follows Stopped",
    "one result": "each call has at most one result",
    "closed": "every call has a result before the next request and before the stop",
    "steps": "steps, attempts and starts are numbered without gaps",
    "request": "a reply or a failed attempt belongs to the open request, and there is one at a time",
    "settled": "each reservation is settled once, by what was held or used",
    "consent": "a call that asks starts only with a yes, and one yes lets one start",
    "again": "a started write starts again only when somebody said that it did not happen",
    "verdict": "a result says no more than what is known: done, refused, unknown",
    "in flight": "people are asked with nothing in flight",
    "asked": "only an open question is answered",
    "success": "COMPLETED comes with an answer",
}


class CallReading(NamedTuple):
    """What the journal says of one call of the step. `yes` counts the starts that are allowed and unused."""

    effect: Effect
    asks: bool
    starts: int = 0
    yes: int = 0
    no: bool = False
    waits: str = ""
    unknown: bool = False
    word: str = ""
    ended: CallStatus | None = None


class Reading(NamedTuple):
    """A journal as the contract reads it. `starts` and `done` count starts and good ends of writes."""

    effects: dict[str, Effect] = {}  # noqa: RUF012 - a NamedTuple's default; never changed
    length: int = 0
    steps: int = 0
    attempts: int = 0
    held: int | None = None
    charged: int = 0
    calls: tuple[CallReading, ...] = ()
    reason: StopReason | None = None
    starts: int = 0
    done: int = 0

    @property
    def closed(self) -> bool:
        """Whether every call of the step has its result."""
        return all(call.ended is not None for call in self.calls)

    @property
    def waits(self) -> str:
        """What people are asked: "approval", "outcome" or ""."""
        return next((call.waits for call in self.calls if call.waits), "")


def read(before: Reading, body: EntryBody) -> tuple[Reading, tuple[str, ...]]:
    """The reading after one more entry, and the names of the rules that this entry breaks."""
    broken = list(_general(before, body))
    after, more = _particular(before, body)
    return after._replace(length=before.length + 1), (*broken, *more)


def _general(before: Reading, body: EntryBody) -> Iterator[str]:
    if isinstance(body, Opened) != (before.length == 0):
        yield "entry 1"
    if before.reason is not None:
        yield "over"
    if isinstance(body, ModelAsked | Stopped) and not before.closed:
        yield "closed"


def _particular(before: Reading, body: EntryBody) -> tuple[Reading, tuple[str, ...]]:
    match body:
        case Opened():
            return before._replace(effects={tool.name: tool.effect for tool in body.tools}), ()
        case ModelAsked():
            return _model_asked(before, body)
        case AttemptFailed():
            right = before.held is not None and body.attempt == before.attempts
            settled = body.charged_tokens == before.held
            charged = before.charged + body.charged_tokens
            return before._replace(held=None, charged=charged), _named(request=right, settled=settled)
        case Replied():
            return _replied(before, body)
        case CallStarted():
            return _started(before, body)
        case CallEnded():
            return _ended(before, body)
        case ApprovalAsked():
            return _asked(before, body)
        case ApprovalDecided():
            return _decided(before, body)
        case OutcomeResolved():
            call = before.calls[body.position]
            heard = call._replace(waits="", word=body.verdict, unknown=body.verdict != "did_not_happen")
            if body.verdict == "did_not_happen":
                heard = heard._replace(yes=call.yes + 1)
            return _with(before, body.position, heard), _named(asked=call.waits == "outcome")
        case Stopped():
            settled = body.settled_tokens == (before.held or 0)
            success = body.reason is not StopReason.COMPLETED or body.answer is not None
            after = before._replace(
                reason=body.reason, held=None, charged=before.charged + body.settled_tokens
            )
            return after, _named(settled=settled, success=success)
        case _:
            raise AssertionError(f"{type(body).__name__} does not occur in this world")


def _named(**holds: bool) -> tuple[str, ...]:
    return tuple(name.replace("_", " ") for name, holding in holds.items() if not holding)


def _with(before: Reading, position: int, call: CallReading) -> Reading:
    return before._replace(calls=(*before.calls[:position], call, *before.calls[position + 1 :]))


def _model_asked(before: Reading, body: ModelAsked) -> tuple[Reading, tuple[str, ...]]:
    first = body.step == before.steps + 1 and body.attempt == before.attempts + 1 <= ATTEMPTS_MOST
    after = before._replace(held=body.reserved_tokens, attempts=body.attempt)
    return after, _named(request=before.held is None, steps=first)


def _replied(before: Reading, body: Replied) -> tuple[Reading, tuple[str, ...]]:
    right = before.held is not None and body.attempt == before.attempts
    calls = tuple(CallReading(before.effects[call.name], call.verdict is Verdict.ASK) for call in body.calls)
    after = before._replace(
        steps=body.step, attempts=0, held=None, charged=before.charged + body.charged_tokens, calls=calls
    )
    return after, _named(request=right, steps=body.step == before.steps + 1)


def _started(before: Reading, body: CallStarted) -> tuple[Reading, tuple[str, ...]]:
    call = before.calls[body.position]
    broken = _named(
        steps=body.start == call.starts + 1 and body.step == before.steps,
        one_result=call.ended is None,
        consent=not call.asks or (call.yes > 0 and not call.no),
        again=not (call.effect is Effect.WRITE and call.starts and call.word != "did_not_happen"),
    )
    started = call._replace(starts=body.start, yes=max(call.yes - 1, 0), unknown=True, word="")
    writes = before.starts + (call.effect is Effect.WRITE)
    return _with(before, body.position, started)._replace(starts=writes), broken


def _ended(before: Reading, body: CallEnded) -> tuple[Reading, tuple[str, ...]]:
    call = before.calls[body.position]
    write = call.effect is Effect.WRITE
    match body.status:
        case CallStatus.OK:
            known = call.unknown
        case CallStatus.UNKNOWN:
            known = write and call.unknown and call.word != "happened"
        case CallStatus.DENIED:
            known = call.no and not call.unknown
        case _:
            known = not (write and call.unknown)
    broken = _named(one_result=call.ended is None, verdict=known, steps=body.step == before.steps)
    after = _with(before, body.position, call._replace(ended=body.status, waits="", unknown=False))
    return after._replace(done=before.done + (write and body.status is CallStatus.OK)), broken


def _asked(before: Reading, body: ApprovalAsked) -> tuple[Reading, tuple[str, ...]]:
    after, fitting = before, True
    for ask in body.asks:
        call = before.calls[ask.position]
        lost = ask.about == "outcome"
        fitting = fitting and call.ended is None and call.unknown == lost
        after = _with(after, ask.position, call._replace(waits=ask.about, yes=0))
    others = [c for c in after.calls if c.unknown and not c.waits and c.effect is Effect.WRITE]
    return after, _named(in_flight=fitting and not others)


def _decided(before: Reading, body: ApprovalDecided) -> tuple[Reading, tuple[str, ...]]:
    call = before.calls[body.position]
    approved = body.decision == "approved"
    heard = call._replace(waits="", yes=call.yes + approved, no=not approved)
    return _with(before, body.position, heard), _named(asked=bool(call.waits))
