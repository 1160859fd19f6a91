"""Tables of claims and summaries: each place and each number by itself (test_evidence.py tells whole runs)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fencepost.core.entries import NO_VALUE, Answer, CallStatus, Claim
from fencepost.core.errors import ArgumentsInvalid
from fencepost.core.evidence import (
    ANSWER_SCHEMA,
    CLAIMS_MOST,
    NUMBERS_MOST,
    PROBLEMS_TOLD_MOST,
    parse_answer,
    problems_of,
)
from fencepost.core.state import State
from tests.core.tables import answer, asked, call, ended, folded, opened, raw, refused, replied

METRICS = {"service": "pay", "rate": 0.08, "count": 12, "big": 2**60, "hosts": ["a-1", "b-2"], "none": None}
LOG = "12:03:11 pay-7 ERROR connection refused by db-3 after 1,250 ms"


def task(prompt: str = "why did pay fail at 12:00?", metrics: str = "", cut: bool = False) -> State:
    """A task with metrics (ev-1.0), a log (ev-1.1), a failed call (ev-1.2) and a person's word (ev-1.3)."""
    calls = [call("read", f"i{n}", n=n) for n in range(4)]
    return folded(
        opened(prompt=prompt, answer="cited"),
        asked(),
        replied(1, *calls, refused("read")),
        ended(1, 0, content=metrics or json.dumps(METRICS), json=True, cut=cut),
        ended(1, 1, content=LOG),
        ended(1, 2, CallStatus.FAILED, "no"),
        ended(1, 3, content="it happened", failure="confirmed_by_person"),
        ended(1, 4, CallStatus.FAILED, "bad", failure="invalid_arguments"),
    )


def at_pointer(pointer: str, value: str = "", *, cited: str = "ev-1.0", quote: str | None = None) -> Claim:
    """A claim about a place, with the value found there or a quote from it."""
    return Claim("so", cited, pointer, raw(value) if value else NO_VALUE, quote)


def quoting(quote: str, cited: str = "ev-1.1") -> Claim:
    """A claim that quotes a text."""
    return Claim("so", cited, quote=quote)


def problems(summary: str, *claims: Claim, state: State | None = None, **more: Any) -> tuple[str, ...]:
    """What is wrong with such an answer."""
    return problems_of(answer(summary, *claims, **more), state or task())


HOLDS = {
    "a value at its place": at_pointer("/rate", "0.08"),
    "the same number spelled differently": at_pointer("/rate", "8e-2"),
    "an integer of any size": at_pointer("/big", str(2**60)),
    "null where there is null": at_pointer("/none", "null"),
    "a list": at_pointer("/hosts", '["a-1", "b-2"]'),
    "a place in a list": at_pointer("/hosts/1", '"b-2"'),
    "a quote": quoting("connection refused"),
    "a whole value may be short": at_pointer("/hosts/0", quote="a-1"),
    "a whole value that is no string": at_pointer("/count", quote="12"),
    "a value and a quote": at_pointer("/service", '"pay"', quote="pay"),
    "the whole of a text": at_pointer("", json.dumps(LOG), cited="ev-1.1"),
    "a quote from the JSON text the model saw": quoting('"service": "pay"', "ev-1.0"),
}


@pytest.mark.parametrize("name", HOLDS)
def test_a_claim_that_is_so_holds(name: str) -> None:
    assert problems("it failed", HOLDS[name]) == ()


FAILS: dict[str, tuple[Claim, str]] = {
    "another value": (at_pointer("/rate", "0.8"), "the value at '/rate' is 0.08, not 0.8"),
    "a value of another type": (at_pointer("/count", '"12"'), 'is 12, not "12"'),
    "true is not one": (at_pointer("/count", "true"), "not true"),
    "no such member": (at_pointer("/ratio", "0.08"), "leads nowhere in ev-1.0"),
    "no such index": (at_pointer("/hosts/2", '"c"'), "leads nowhere"),
    "a malformed pointer": (at_pointer("rate", "0.08"), "leads nowhere"),
    "a place in a text": (at_pointer("/0", '"1"', cited="ev-1.1"), "leads nowhere"),
    "no place at all": (Claim("so", "ev-1.0"), "give a pointer with a value, or a quote"),
    "a value without a place": (replace(quoting(LOG), value=raw("8")), "needs the pointer"),
    "a place without a value": (at_pointer("/rate"), "needs the value found there"),
    "a value that is no JSON": (at_pointer("/rate", "{"), "value is not JSON"),
    "a value with one key twice": (at_pointer("/rate", '{"a":1,"a":1}'), "value is not JSON"),
    "a quote that is too short": (quoting("refused"), "needs 12 characters"),
    "a quote of spaces": (quoting(" " * 20), "needs 12 characters"),
    "an empty quote": (quoting(""), "needs 12 characters"),
    "a quote that is not there": (quoting("connection accepted"), "does not occur in ev-1.1"),
    "a quote in other letters": (quoting("Connection Refused"), "does not occur"),
    "a quote that is not at its place": (
        at_pointer("/service", quote="connection refused"),
        "does not occur",
    ),
    "a right value with a wrong quote": (at_pointer("/service", '"pay"', quote="x"), "needs 12 characters"),
}


@pytest.mark.parametrize("name", FAILS)
def test_a_claim_that_is_not_so_is_told_with_its_number(name: str) -> None:
    claim, said = FAILS[name]
    [problem] = problems("it failed", quoting("connection refused"), claim)
    assert problem.startswith("claims[1]: ")
    assert said in problem


@pytest.mark.parametrize("cited", ["ev-1.2", "ev-1.3", "ev-1.4", "ev-2.0", "task-1/ev-1.0", "", "ev-1.0 "])
def test_only_a_good_result_of_this_task_may_be_cited(cited: str) -> None:
    told = problems("it failed", quoting("connection refused"), ids=("ev-1.1", cited))
    assert told == (f"{cited!r} is not a successful result of this task; obtained: ev-1.0, ev-1.1",)
    [problem] = problems("it failed", at_pointer("/rate", "0.08", cited=cited))
    assert "not a successful result" in problem


def test_a_task_without_results_has_none_to_cite() -> None:
    [problem] = problems("it failed", quoting("connection refused"), state=folded(opened(answer="cited")))
    assert problem.endswith("obtained: none yet")


def test_an_answer_is_not_empty() -> None:
    assert problems_of(Answer(" \n"), task()) == (
        "summary is empty",
        "evidence_ids is empty; cite at least one result",
        "claims is empty; tie at least one sentence to a result",
    )


def test_a_claim_cites_what_the_answer_lists() -> None:
    [problem] = problems("it failed", quoting("connection refused"), ids=("ev-1.0",))
    assert problem == "claims[0] cites ev-1.1, which evidence_ids does not list"


def test_a_place_in_a_result_that_was_cut_cannot_be_checked_and_may_be_quoted() -> None:
    state = task(cut=True)
    [problem] = problems("it failed", at_pointer("/rate", "0.08"), state=state)
    assert "shown cut" in problem
    assert problems("it failed", quoting('"service": "pay"', "ev-1.0"), state=state) == ()


RATE, COUNT, LINE = at_pointer("/rate", "0.08"), at_pointer("/count", "12"), quoting(LOG)
SUMMARIES = [
    ("no number at all", True),
    ("the rate was 0.08", True),
    ("the rate was 8e-2", True),
    ("the rate was .08!", True),
    ("the rate was (0.080)", True),
    ("the rate was 0.081", False),
    ("the rate was 8", False),
    ("it was \u22120.08", False),
    ("there were 12 of them", True),
    ("there were 13 of them", False),
    ("there were 12k of them", False),
    ("it failed at 12:00", True),
    ("it failed at 12:03:11", True),
    ("it failed at 12:04", False),
    ("db-3 refused", True),
    ("db-4 refused", False),
    ("after 1,250 ms", True),
    ("after 1250ms", True),
    ("after 1251 ms", False),
    ("pay-7 did", True),
    ("between 12-1250", True),
    ("between 12-1300", False),
    ("as ev-1.0 shows", True),
    ("as ev-1.2 shows", False),
    ("½ of them", False),
    ("twelve of them", True),
]


@pytest.mark.parametrize(("summary", "holds"), SUMMARIES, ids=[text for text, _ in SUMMARIES])
def test_a_number_of_the_summary_was_looked_up(summary: str, holds: bool) -> None:
    told = problems(summary, RATE, COUNT, LINE)
    assert (told == ()) is holds, told
    if not holds:
        assert "in the summary occurs in no checked claim and not in the prompt" in told[0]


def test_a_number_of_a_claim_that_does_not_hold_was_not_looked_up() -> None:
    told = problems("the rate was 0.9", LINE, at_pointer("/rate", "0.9"))
    assert len(told) == 2
    assert "'0.9' in the summary" in told[1]


def test_numbers_within_a_cited_value_were_looked_up() -> None:
    metrics = '{"by": {"eu-1": {"p99": 840, "up": true, "note": null}}, "top": [3, "x9"]}'
    whole = at_pointer("", metrics)
    state = task(metrics=metrics)
    assert problems("eu-1 had p99 840, then 3 and x9", whole, state=state) == ()
    assert problems("eu-2 had 841", whole, state=state) != ()


def test_a_unit_must_be_the_same_where_both_have_one() -> None:
    state = task(metrics='{"took": "250 ms", "then": "40ms"}')
    claim = at_pointer("", '{"took": "250 ms", "then": "40ms"}')
    assert problems("it took 250 ms, then 40 ms, 40ms", claim, state=state) == ()
    assert problems("it took 40s", claim, state=state) != ()


def test_a_comma_in_quoted_json_divides_numbers() -> None:
    state = task(metrics='{"points":[[1,250],[2,300]]}')
    assert problems("250 then 300", quoting('"points":[[1,250],[2,300]]', "ev-1.0"), state=state) == ()


def test_what_is_told_is_bounded() -> None:
    claims = [at_pointer(f"/{n}", "1") for n in range(PROBLEMS_TOLD_MOST + 3)]
    told = problems("it failed", *claims)
    assert len(told) == PROBLEMS_TOLD_MOST + 1
    assert told[-1] == "and 3 more"
    [long] = problems("it failed", quoting("x" * 5000))
    assert len(long) < 200


def test_an_answer_of_endless_claims_or_numbers_is_not_checked() -> None:
    told = problems("it failed", *[LINE] * (CLAIMS_MOST + 1))
    assert told == (f"{CLAIMS_MOST + 1} claims; give at most {CLAIMS_MOST}",)
    assert problems("it failed", *[LINE] * CLAIMS_MOST) == ()
    numbers = " ".join(str(n) for n in range(1000, 1000 + NUMBERS_MOST + 1))
    [problem] = problems(numbers, LINE)
    assert "give at most" in problem


WIRE = {"summary": "s", "evidence_ids": ["ev-1.0"], "claims": [{"text": "t", "evidence_id": "ev-1.0"}]}


def test_an_answer_on_the_wire_is_read_strictly() -> None:
    text = (
        '{"summary": "s", "evidence_ids": ["ev-1.0"], "claims": ['
        '{"text": "t", "evidence_id": "ev-1.0", "pointer": "/n", "value": 1.0},'
        '{"text": "u", "evidence_id": "ev-1.0", "quote": "twelve letters", "value": null}]}'
    )
    read = parse_answer(text)
    assert (read.summary, read.evidence_ids) == ("s", ("ev-1.0",))
    assert [bytes(claim.value) for claim in read.claims] == [b"1", b"null"]
    assert read.claims[1].quote == "twelve letters"
    assert parse_answer(json.dumps(WIRE)).claims[0].value is NO_VALUE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "missing required field"),
        ("[]", r"\$ must be an object"),
        ("{", "answer: "),
        ('{"summary": "a", "summary": "b"}', "summary"),
        (json.dumps({**WIRE, "sure": True}), "sure"),
        (json.dumps({**WIRE, "summary": 1}), "summary"),
        (json.dumps({**WIRE, "evidence_ids": "ev-1.0"}), "evidence_ids"),
        (json.dumps({**WIRE, "claims": [{"text": "t"}]}), "claims"),
        (json.dumps({**WIRE, "claims": [{"text": "t", "evidence_id": "e", "why": 1}]}), "why"),
    ],
)
def test_an_answer_that_is_none_is_refused_with_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(ArgumentsInvalid, match=said):
        parse_answer(text)


def test_the_schema_the_model_sees_asks_for_what_is_read() -> None:
    schema = msgspec.json.decode(ANSWER_SCHEMA)
    assert schema["required"] == list(WIRE)
    claim = schema["properties"]["claims"]["items"]
    assert set(claim["properties"]) == set(Claim.__struct_fields__)
    assert claim["additionalProperties"] is schema["additionalProperties"] is False


def test_a_claim_without_its_prompt_is_checked_all_the_same() -> None:
    unopened = replace(task(), opened=None)
    assert problems("the rate was 0.08", RATE, state=unopened) == ()
    assert problems("it failed at 12:00", RATE, state=unopened) != ()
