"""Citations: which claims are tied to a result, and which numbers of a summary were looked up."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from fencepost import Agent, Finish, Limits, Reply, ScriptedModel, StopReason, ToolCall, run_task, tool
from fencepost.core.entries import CallEnded, CallStatus, Claim, Stopped
from fencepost.core.evidence import CLAIMS_MOST, NUMBERS_MOST, parse_answer, problem_of_claim
from fencepost.models.scripted import call, calls

DOCUMENT = {
    "errors": 2015,
    "rate": -5,
    "share": 0.5,
    "big": 12345678,
    "name": "payment-3",
    "log": 'served 1,234 requests\nthen "failed"',
    "p": [100, 200],
    "flag": True,
    "huge": 9007199254740993,
}
"""What the one tool of these tests returned."""


def result(content: object = DOCUMENT, **fields: Any) -> CallEnded:
    text = content if isinstance(content, str) else json.dumps(content, separators=(",", ":"))
    return CallEnded(1, 0, CallStatus.OK, text, json=not isinstance(content, str), **fields)


def claim(**fields: Any) -> Claim:
    given = {"text": "so", "evidence_id": "ev-1.0", **fields}
    document = {"summary": "s", "evidence_ids": ["ev-1.0"], "claims": [given]}
    return parse_answer(json.dumps(document)).claims[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"pointer": "/errors", "value": 2015},
        {"pointer": "/errors", "value": 2015.0},
        {"pointer": "/share", "value": 0.5},
        {"pointer": "/huge", "value": 9007199254740993},
        {"pointer": "/p", "value": [100, 200]},
        {"pointer": "/log", "quote": 'requests\nthen "failed"'},
        {"pointer": "/name", "quote": "payment-3"},
        {"pointer": "/name", "value": "payment-3", "quote": "payment-3"},
        {"pointer": "/flag", "value": True},
        {"quote": '"name":"payment-3"'},
    ],
)
def test_a_claim_that_says_what_is_there_may_stand(fields: dict[str, Any]) -> None:
    assert problem_of_claim(claim(**fields), result()) == ""


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "give a pointer with a value, or a quote"),
        ({"pointer": "/errors"}, "a pointer needs the value found there"),
        ({"pointer": "/errors", "value": 2016}, "is 2015, not 2016"),
        ({"pointer": "/errors", "value": "2015"}, 'is 2015, not "2015"'),
        ({"pointer": "/flag", "value": 1}, "is true, not 1"),
        ({"pointer": "/errors", "value": None}, "is 2015, not null"),
        ({"pointer": "/huge", "value": 9007199254740992}, "is 9007199254740993, not"),
        ({"pointer": "/p/2", "value": 1}, "leads nowhere"),
        ({"pointer": "p", "value": 1}, "leads nowhere"),
        ({"pointer": "/errors", "value": 2015, "quote": "2016"}, "a quote needs 12 characters"),
        ({"quote": "payment-3"}, "a quote needs 12 characters"),
        ({"quote": ""}, "a quote needs 12 characters"),
        ({"quote": "never said by anybody"}, "does not occur"),
        ({"quote": '"name":"payment-3"', "value": 99999}, "a value needs the pointer"),
    ],
)
def test_a_claim_that_says_something_else_is_told_what_is_wrong(fields: dict[str, Any], says: str) -> None:
    assert says in problem_of_claim(claim(**fields), result())


def test_white_space_is_no_quote() -> None:
    indented = result("a" + " " * 20 + "b")
    assert "a quote needs 12 characters" in problem_of_claim(claim(quote=" " * 12), indented)


def test_text_that_is_no_json_is_quoted_or_cited_as_a_whole() -> None:
    text = result("0123")
    assert problem_of_claim(claim(quote="0123"), text) == ""
    assert problem_of_claim(claim(pointer="", value="0123"), text) == ""
    assert "leads nowhere" in problem_of_claim(claim(pointer="/0", value="0"), text)


def test_a_cut_result_is_quoted_and_not_pointed_into() -> None:
    cut = result("the beginning and [...] the end", cut=True)
    assert problem_of_claim(claim(quote="the beginning"), cut) == ""
    assert "was shown cut" in problem_of_claim(claim(pointer="", value="x"), cut)


@tool(effect="read")
def look() -> Any:
    """The document, or a log."""
    return DOCUMENT


@tool(effect="read")
def read_log() -> str:
    """Text that is no JSON."""
    return "2024-05-01T12:03:11Z p99 412ms, served 1,234 requests of 10k on v1.2.3"


async def told(
    summary: str, *claims: dict[str, Any], prompt: str = "Look.", ids: tuple[str, ...] = ("ev-1.0",)
) -> str:
    """What a task that calls both tools says of an answer; "" when it takes it."""
    given = [{"text": "so", "evidence_id": "ev-1.0", **fields} for fields in claims]
    text = json.dumps({"summary": summary, "evidence_ids": ids, "claims": given})
    script = [
        calls(call("look"), call("read_log")),
        Reply("", (ToolCall("last", "answer", text),), Finish.TOOL_CALLS),
    ]
    limits = Limits(steps=3, answer_tries=1)
    agent = Agent("a", ScriptedModel(script), limits, tools=[look, read_log], answer="cited")
    stopped = (await run_task(agent, prompt)).entries[-1].body
    assert isinstance(stopped, Stopped)
    assert (stopped.reason is StopReason.COMPLETED) is (not stopped.detail)
    return stopped.detail


ERRORS = {"pointer": "/errors", "value": 2015}
RATE = {"pointer": "/rate", "value": -5}
LOG = {"evidence_id": "ev-1.1", "quote": read_log.function()}


@pytest.mark.parametrize(
    ("summary", "claim"),
    [
        *((f"{number} errors.", ERRORS) for number in ("2015", "2,015", "2015.0", "2.015e3", "+2015")),
        *((f"{number} errors.", ERRORS) for number in ("\u0662\u0660\u0661\u0665", "~2015", "**2015**")),
        *((f"It took {number}.", ERRORS) for number in ("2015ms", "2015 ms", "$2015", "2015%")),
        *((f"By {number}.", RATE) for number in ("-5", "\u22125", "-5%")),
        ("Share .5, or 0.50", {"pointer": "/share", "value": 0.5}),
        ("Two: 100 and 200, 100-200, 100/200, 100\u2013200", {"pointer": "/p", "value": [100, 200]}),
        ("Of [100,200], 100 and 200.", {"quote": '"p":[100,200]'}),
        ("\u5171\u67092015\u4e2a\u9519\u8bef\uff0c", ERRORS),
        ("payment-3 of ev-1.0 (ev-1.0): fine", {"pointer": "/name", "value": "payment-3"}),
        ("At 12:03 on 2024-05-01, 412 ms, 1234 or 1,234, 10k, p99 of v1.2.3", LOG),
        ("No number at all.", ERRORS),
    ],
)  # fmt: skip
async def test_a_number_of_a_checked_claim_may_be_in_the_summary(summary: str, claim: dict[str, Any]) -> None:
    assert await told(summary, claim, ids=("ev-1.0", "ev-1.1")) == ""


@pytest.mark.parametrize(
    ("summary", "number", "claim"),
    [
        *((f"{number} errors.", number, ERRORS) for number in ("5", "1", "0", "20", "-2015", "2015.1")),
        *((f"{number} errors.", number, ERRORS) for number in ("2015k", "2015e1", "\u00bd", "\u2467")),
        *((f"{number} errors.", number, ERRORS) for number in ("snan1", "nan1", "2015\u00b2", "v2015")),
        *((f"{number} errors.", number, ERRORS) for number in ("1-2015", "20,15", "\u0663")),
        ("By 5.", "5", RATE),
        ("Share 50%.", "50", {"pointer": "/share", "value": 0.5}),
        ("Only 3 fail.", "3", {"pointer": "/name", "value": "payment-3"}),
        ("Only payment-4 fails.", "payment-4", {"pointer": "/name", "value": "payment-3"}),
        ("In all 234.", "234", LOG),
        ("Only 10 of them.", "10", LOG),
        ("In 412s.", "412s", LOG),
        ("Now 99.", "99", LOG),
        ("On v1.2 now.", "v1.2", LOG),
        ("At 2:03 then.", "2:03", LOG),
        ("See ev-1.05 for that.", "ev-1.05", ERRORS),
    ],
)  # fmt: skip
async def test_a_number_from_nowhere_is_named(summary: str, number: str, claim: dict[str, Any]) -> None:
    said = await told(summary, claim, ids=("ev-1.0", "ev-1.1"))
    assert said == f"{number!r} in the summary occurs in no checked claim and not in the prompt"


async def test_a_number_of_the_prompt_may_be_in_the_summary() -> None:
    assert await told("Since 14:05 in zone 7.", ERRORS, prompt="Since 14:05, zone 7?") == ""
    assert "'7' in the summary" in await told("Zone 7.", ERRORS, prompt="Zone 17?")


async def test_a_number_of_a_claim_that_is_wrong_was_not_looked_up() -> None:
    said = await told("9 errors.", {"pointer": "/errors", "value": 9})
    assert "is 2015, not 9" in said
    assert "'9' in the summary" in said
    beside = await told("9 errors.", {"quote": '"errors":2015', "value": 9})
    assert "a value needs the pointer" in beside
    assert "'9' in the summary" in beside


async def test_what_is_empty_or_not_obtained_is_told() -> None:
    assert await told(" ", ERRORS) == "summary is empty"
    nothing = await told("It is so.", ids=())
    assert nothing.startswith("evidence_ids is empty; cite at least one result; claims is empty; tie")
    assert "'ev-7.0' is not a successful result of this task; obtained: ev-1.0, ev-1.1" in await told(
        "It is so.", ERRORS, ids=("ev-1.0", "ev-7.0")
    )
    assert "claims[0] cites ev-1.0, which evidence_ids does not list" in await told(
        "It is so.", ERRORS, ids=("ev-1.1",)
    )


async def test_what_is_told_stays_short_whatever_was_cited() -> None:
    long = "9" * 60_000
    for said in (
        await told(long, ERRORS),
        await told("It is so.", ERRORS, ids=("ev-1.0", long)),
        await told("It is so.", {"pointer": "/" + long, "value": 1}),
        await told("It is so.", {"pointer": "/" + long[:4000], "value": 1}),
        await told("It is so.", {"pointer": "/errors", "value": long}),
    ):
        assert 0 < len(said) < 1000
    wrong = [{"pointer": "/errors", "value": n} for n in range(20)]
    assert (await told("It is so.", *wrong)).endswith("; and 12 more")


async def test_an_answer_with_too_much_in_it_is_refused_before_it_is_searched() -> None:
    assert await told("It is so.", *[ERRORS] * CLAIMS_MOST) == ""
    assert f"give at most {CLAIMS_MOST}" in await told("It is so.", *[ERRORS] * (CLAIMS_MOST + 1))
    many = " ".join(map(str, range(NUMBERS_MOST + 1)))
    said = await told(many, ERRORS)
    assert said == f"the summary has {NUMBERS_MOST + 1} numbers; give at most {NUMBERS_MOST}"


async def test_a_long_word_costs_no_more_than_its_length() -> None:
    started = time.perf_counter()
    assert await told("a" * 200_000, ERRORS, prompt="a" * 90_000) == ""
    assert time.perf_counter() - started < 2  # by the square of the length it is minutes
