"""Whether an answer's claims are tied to results this very task obtained (contract 10).

Evidence shows that an observation exists, never that a cause is true. What is checked here: the ids, the places,
the values, and that each number of the summary was looked up somewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation

import msgspec

from fencepost.core.canonical import canonical
from fencepost.core.entries import NO_VALUE, Answer, CallEnded, Claim
from fencepost.core.errors import ArgumentsInvalid, FencepostError, JsonInvalid
from fencepost.core.pointer import resolve
from fencepost.core.state import State, evidence_of
from fencepost.core.strictjson import loads

# A quote shorter than this is found by chance in any log; a whole value may be shorter (contract 10.2).
QUOTE_CHARS_LEAST = 12
# More problems than this do not help a model to correct its answer.
PROBLEMS_TOLD_MOST = 8
# The newest ids are the ones a model is likely to have meant.
IDS_TOLD_MOST = 20

_WORD_WITH_DIGIT = re.compile(r"[^\s\"'`(){}\[\],;<>=%]*\d[^\s\"'`(){}\[\],;<>=%]*")


def problems_of(answer: Answer, state: State) -> tuple[str, ...]:
    """Everything that is wrong with an answer's citations, worded for the model; empty means it may stand."""
    found = list(_problems(answer, state))
    if len(found) > PROBLEMS_TOLD_MOST:
        found = [*found[:PROBLEMS_TOLD_MOST], f"and {len(found) - PROBLEMS_TOLD_MOST} more"]
    return tuple(found)


def _problems(answer: Answer, state: State) -> Iterator[str]:
    evidence = evidence_of(state)
    if not answer.summary.strip():
        yield "summary is empty"
    if not answer.evidence_ids:
        yield "evidence_ids is empty; cite at least one result"
    if not answer.claims:
        yield "claims is empty; tie at least one sentence to a result"
    for cited in dict.fromkeys((*answer.evidence_ids, *(c.evidence_id for c in answer.claims))):
        if not cited in evidence:
            yield f"{cited!r} is not a successful result of this task; obtained: {_obtained(evidence)}"
    texts = [state.opened.prompt] if state.opened is not None else []
    for number, claim in enumerate(answer.claims):
        ended = evidence.get(claim.evidence_id)
        if ended is None:
            continue
        if claim.evidence_id not in answer.evidence_ids:
            yield f"claims[{number}] cites {claim.evidence_id}, which evidence_ids does not list"
        problem = problem_of_claim(claim, ended)
        if problem:
            yield f"claims[{number}]: {problem}"
        else:
            texts.extend(_shown(claim))
    yield from _numbers_nowhere(answer, texts)


def _obtained(evidence: Mapping[str, CallEnded]) -> str:
    return ", ".join(list(evidence)[-IDS_TOLD_MOST:]) or "none yet"


def problem_of_claim(claim: Claim, ended: CallEnded) -> str:
    """What is wrong with one claim about one result, or ""."""
    if claim.pointer is None and claim.quote is None:
        return "give a pointer with a value, or a quote"
    place: object = ended.content
    if claim.pointer is not None:
        if ended.cut:
            return "the result was shown cut, so a pointer into it cannot be checked; quote the text you saw"
        document = json.loads(ended.content) if ended.json else ended.content
        try:
            place = resolve(document, claim.pointer)
        except (FencepostError, LookupError, ValueError) as why:
            return f"pointer {claim.pointer!r} leads nowhere in {claim.evidence_id} ({why})"
        if not bytes(claim.value) and claim.quote is None:
            return "a pointer needs the value found there, or a quote from it"
        if bytes(claim.value) and (problem := _problem_of_value(claim, place)):
            return problem
    return "" if claim.quote is None else _problem_of_quote(claim, place)


def _problem_of_value(claim: Claim, place: object) -> str:
    try:
        cited = loads(bytes(claim.value))
    except FencepostError as why:
        return f"value is not JSON ({why})"
    if canonical(cited) == canonical(place):
        return ""
    return f"the value at {claim.pointer!r} is {_brief(canonical(place))}, not {_brief(canonical(cited))}"


def _problem_of_quote(claim: Claim, place: object) -> str:
    whole = place if isinstance(place, str) else canonical(place)
    quote = claim.quote or ""
    if quote == whole and quote:
        return ""
    if len(quote) < QUOTE_CHARS_LEAST:
        return f"a quote needs {QUOTE_CHARS_LEAST} characters or the whole value, got {len(quote)}"
    if quote not in whole:
        return f"the quote {_brief(quote)} does not occur in {claim.evidence_id}"
    return ""


def _brief(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:60]}…{text[-15:]}"


def _shown(claim: Claim) -> Iterator[str]:
    """The texts of a claim that was checked: what a number of the summary may have been read from."""
    yield claim.evidence_id
    if bytes(claim.value):
        yield bytes(claim.value).decode()
    if claim.quote is not None:
        yield claim.quote


def _numbers_nowhere(answer: Answer, texts: list[str]) -> Iterator[str]:
    known, words = set(), set()
    for text in (*texts, *answer.evidence_ids):
        for word in _words(text):
            words.add(word)
            if (number := _number(word)) is not None:
                known.add(number)
    joined = "\0".join(texts)
    for word in dict.fromkeys(_words(answer.summary)):
        number = _number(word)
        if word in words or word in joined or (number is not None and number in known):
            continue
        yield f"{word!r} in the summary occurs in no checked claim and not in the prompt"


def _words(text: str) -> Iterator[str]:
    for found in _WORD_WITH_DIGIT.finditer(text):
        yield found.group().strip(".:!?*_/").rstrip("-")


def _number(word: str) -> Decimal | None:
    try:
        return Decimal(word)
    except InvalidOperation:
        return None


def parse_answer(text: str) -> Answer:
    """The cited answer a JSON text holds, or ArgumentsInvalid saying what is wrong with it."""
    return _convert(text)


def _convert(text: str) -> Answer:
    try:
        document = loads(text or "{}")
    except JsonInvalid as why:
        raise ArgumentsInvalid(f"answer: {why}") from None
    if not isinstance(document, dict):
        raise ArgumentsInvalid("answer: $ must be an object with summary, evidence_ids and claims")
    try:
        wire = msgspec.convert(document, _AnswerOnTheWire, strict=True)
    except msgspec.ValidationError as why:
        raise ArgumentsInvalid(f"answer: {why}; expected {ANSWER_SHAPE}") from None
    claims = tuple(
        Claim(c.text, c.evidence_id, c.pointer, _value(c.value), c.quote)
        for c in wire.claims
    )
    return Answer(wire.summary, tuple(wire.evidence_ids), claims)


def _value(value: object) -> msgspec.Raw:
    """A cited value as JSON text; none is `NO_VALUE` itself, because any other empty Raw encodes as no JSON."""
    return NO_VALUE if value is msgspec.UNSET else msgspec.Raw(canonical(value).encode())


class _ClaimOnTheWire(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    evidence_id: str
    pointer: str | None = None
    value: object = msgspec.UNSET
    quote: str | None = None


class _AnswerOnTheWire(msgspec.Struct, forbid_unknown_fields=True):
    summary: str
    evidence_ids: list[str]
    claims: list[_ClaimOnTheWire]


ANSWER_SHAPE = (
    '{"summary": string, "evidence_ids": ["ev-1.0"], "claims": [{"text": string, "evidence_id": "ev-1.0",'
    ' "pointer": "/path" , "value": what is there} or {…, "quote": string of 12 characters or more}]}'
)

ANSWER_SCHEMA = json.dumps(
    {
        "type": "object",
        "additionalProperties": False,
        "required": ["summary", "evidence_ids", "claims"],
        "properties": {
            "summary": {"type": "string", "minLength": 1},
            "evidence_ids": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "claims": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["text", "evidence_id"],
                    "properties": {
                        "text": {"type": "string"},
                        "evidence_id": {"type": "string"},
                        "pointer": {"type": "string", "description": "JSON Pointer into the result"},
                        "value": {"description": "the JSON value found at pointer"},
                        "quote": {"type": "string", "description": "12 characters or more from the result"},
                    },
                },
            },
        },
    }
)
