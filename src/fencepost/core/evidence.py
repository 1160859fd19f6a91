"""Whether an answer's claims are tied to results this very task obtained (contract 10).

Evidence shows that an observation exists, never that a cause is true. What is checked here: the ids, the
places, the values, and that each number of the summary was looked up: it equals a number of a checked claim
or of the prompt, or the word it is in ("12:03", "v1.2", "p99") stands there as it is.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal

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

# Each claim is looked up in a result, each number in every checked text; an answer with more is no answer.
CLAIMS_MOST = 100
NUMBERS_MOST = 200

# Between words: white space, quotes, brackets, dashes, arrows, and scripts that are written without spaces.
_GAPS = re.compile(
    "[\\s\"'`(){}\\[\\];<>=%|\u00ab\u00b7\u00bb\u00d7\u2010-\u205f\u2190-\u21ff\u2248"
    "\u3000-\u9fff\uac00-\ud7af\uff00-\uff0f\uff1a\uff1b]+"
)
# Around words, and no part of them. A minus is; a point is where a digit follows.
_AROUND = ",:!?*_/~$\u20ac\u00a3\u00a5#+&@"
_NUMBER = re.compile(
    r"([-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,4})?)([^\W\d_]{0,6})"
)
# They make another number of the one before them; such a word must occur as it stands.
_MAGNITUDES = frozenset(("k", "K", "M", "B", "G", "T", "bn", "mn"))
_PAIR = re.compile(r"(\d[^-/]*)[-/]([^-/]+)")
_ATOM = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+|[^\w\s]|_")
_COMMA_IN_DIGITS = re.compile(r"(?<=\d),(?=\d)")


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
    if len(answer.claims) > CLAIMS_MOST:
        yield f"{len(answer.claims)} claims; give at most {CLAIMS_MOST}"
        return
    for cited in dict.fromkeys((*answer.evidence_ids, *(c.evidence_id for c in answer.claims))):
        if cited not in evidence:
            obtained = _obtained(evidence)
            yield f"{_brief(cited)!r} is not a successful result of this task; obtained: {obtained}"
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
            texts.extend(_shown(claim, ended))
    yield from _numbers_nowhere(answer.summary, texts, [i for i in answer.evidence_ids if i in evidence])


def _obtained(evidence: Mapping[str, CallEnded]) -> str:
    return ", ".join(list(evidence)[-IDS_TOLD_MOST:]) or "none yet"


def problem_of_claim(claim: Claim, ended: CallEnded) -> str:
    """What is wrong with one claim about one result, or ""."""
    if claim.pointer is None and claim.quote is None:
        return "give a pointer with a value, or a quote"
    if claim.pointer is None and bytes(claim.value):
        return "a value needs the pointer to where it was found"
    place: object = ended.content
    if claim.pointer is not None:
        if ended.cut:
            return "the result was shown cut, so a pointer into it cannot be checked; quote the text you saw"
        document = json.loads(ended.content) if ended.json else ended.content
        try:
            place = resolve(document, claim.pointer)
        except (FencepostError, LookupError, ValueError) as why:
            return f"pointer {_brief(claim.pointer)!r} leads nowhere in {claim.evidence_id} ({why})"
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
    said, there = canonical(cited), canonical(place)
    if said == there:
        return ""
    return f"the value at {_brief(claim.pointer or '')!r} is {_brief(there)}, not {_brief(said)}"


def _problem_of_quote(claim: Claim, place: object) -> str:
    whole = place if isinstance(place, str) else canonical(place)
    quote = claim.quote or ""
    if quote == whole and quote:
        return ""
    if len(quote.strip()) < QUOTE_CHARS_LEAST:
        return f"a quote needs {QUOTE_CHARS_LEAST} characters or the whole value, got {len(quote)}"
    if quote not in whole:
        return f"the quote {_brief(quote)} does not occur in {claim.evidence_id}"
    return ""


def _brief(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:60]}…{text[-15:]}"


def _shown(claim: Claim, ended: CallEnded) -> Iterator[str]:
    """The texts of a claim that was checked: what a number of the summary may have been read from."""
    if bytes(claim.value):
        yield from _leaves(json.loads(bytes(claim.value)))
    if claim.quote is not None:
        yield claim.quote
        if ended.json:  # a comma between digits may divide two numbers there
            yield _COMMA_IN_DIGITS.sub(" ", claim.quote)


def _leaves(value: object) -> Iterator[str]:
    """The strings, keys and numbers of a JSON value, each as a text of its own."""
    match value:
        case dict():
            for key, member in value.items():
                yield key
                yield from _leaves(member)
        case list():
            for member in value:
                yield from _leaves(member)
        case str():
            yield value
        case None | bool():
            return
        case _:
            yield canonical(value)


def _numbers_nowhere(summary: str, texts: list[str], ids: list[str]) -> Iterator[str]:
    known: dict[Decimal, set[str]] = {}
    for text in texts:
        for word in _words(text):
            for part in (word, *re.split("[:/]", word)):
                if (read := _number(part)) is not None:
                    known.setdefault(read[0], set()).add(read[1])
    spaced = _spaced((*texts, *ids))
    words = list(dict.fromkeys(_words(summary)))
    if len(words) > NUMBERS_MOST:
        yield f"the summary has {len(words)} numbers; give at most {NUMBERS_MOST}"
        return
    for word in words:
        if not _occurs(word, known, spaced):
            yield f"{_brief(word)!r} in the summary occurs in no checked claim and not in the prompt"


def _occurs(word: str, known: Mapping[Decimal, set[str]], spaced: str) -> bool:
    """Whether a number is known, its unit too where both have one; any other word must stand in the texts."""
    if (read := _number(word)) is not None:
        units = known.get(read[0])
        return units is not None and (not read[1] or "" in units or read[1] in units)
    if _spaced([word]) in spaced:
        return True
    pair = _PAIR.fullmatch(word)  # a range, a ratio, "5-minute"
    return pair is not None and all(
        _occurs(part, known, spaced) for part in pair.groups() if _has_number(part)
    )


def _spaced(texts: Iterable[str]) -> str:
    """The texts with a space around each run of digits, each run of letters and each mark.

    A word found in it does not begin or end within a number or another word.
    """
    return " " + " ".join(atom for text in texts for atom in _ATOM.findall(_with_ascii_minus(text))) + " "


def _words(text: str) -> Iterator[str]:
    """The words of a text that have a digit or another numeral in them."""
    for word in _GAPS.split(_with_ascii_minus(text)):
        bare = word.strip(_AROUND).rstrip(".-" + _AROUND)
        if _has_number(bare):
            yield bare


def _with_ascii_minus(text: str) -> str:
    return text.replace("\u2212", "-")


def _has_number(word: str) -> bool:
    if word.isascii():
        return any(map(str.isdigit, word))
    return any(unicodedata.category(char)[0] == "N" for char in word)


def _number(word: str) -> tuple[Decimal, str] | None:
    """The number a word stands for, whatever its spelling, and the letters of a unit after it."""
    found = _NUMBER.fullmatch(word)
    if found is None or found[2] in _MAGNITUDES or not (found[2].isalpha() or not found[2]):
        return None
    return Decimal(found[1].replace(",", "")), found[2]


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
    claims = tuple(Claim(c.text, c.evidence_id, c.pointer, _value(c.value), c.quote) for c in wire.claims)
    return Answer(wire.summary, tuple(wire.evidence_ids), claims)


def _value(value: object) -> msgspec.Raw:
    """A cited value as JSON text; none is `NO_VALUE` itself: any other empty Raw encodes as no JSON."""
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
