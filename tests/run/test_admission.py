"""From a reply to a checked structure: what each call carries, what is charged, which ids go back."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from msgspec.structs import replace

from fencepost import Agent, Limits, Reply, ScriptedModel, Usage, tool
from fencepost.core.entries import AdmittedCall, CallEnded, CallStatus, ModelAsked, Replied, Verdict
from fencepost.core.messages import Finish, ModelProfile, ToolCall
from fencepost.core.state import State, fold
from fencepost.core.strictjson import MAX_BYTES
from fencepost.models.scripted import answer, call, calls
from fencepost.run.admission import ID_CHARS_MOST, REFUSAL_BYTES_MOST, admit, believable, charge
from tests.conformance.stage import Says

PRICED = ModelProfile("priced", input_nano=2, output_nano=3)


@tool(effect="read")
async def look(n: int = 0) -> int:
    """See."""
    return n


def asked(*, cited: bool = False, profile: ModelProfile = PRICED, earlier: tuple[str, ...] = ()) -> State:
    """A task whose model has been asked and holds 100 tokens and 500 nano-units."""
    agent = Agent("a", ScriptedModel([]), Limits(9), tools=(look,), answer="cited" if cited else "text")
    state = fold([agent.opened("do it", "ada")])
    if earlier:
        made = tuple(AdmittedCall(each, each, "look", digest="d") for each in earlier)
        ends = [CallEnded(1, n, CallStatus.OK, "1") for n in range(len(made))]
        state = fold([ModelAsked(1, 1, 10, 10), Replied(1, 1, Finish.TOOL_CALLS, calls=made), *ends], state)
    state = fold([ModelAsked(2, 1, 100, 500)], state)
    return replace(state, profile=profile)


def admitted(reply: Reply, state: State | None = None, **more: Any) -> Replied:
    options: dict[str, Any] = {"tools": {"look": look}, "boundary": Says(), "principal": "ada", **more}
    return admit(reply, asked() if state is None else state, step=2, attempt=1, **options)[0]


# --- calls


def test_a_good_call_carries_its_canonical_arguments_their_digest_and_a_verdict() -> None:
    reply = calls(ToolCall("c1", "look", ' { "n" : 7.0 } '))
    entry, prepared = admit(
        reply, asked(), tools={"look": look}, boundary=Says(look="ask"), principal="ada", step=2, attempt=1
    )
    (one,) = entry.calls
    assert (one.id, one.sent_id, one.arguments) == ("c1", "c1", '{"n":7}')
    assert one.digest == prepared[0].digest
    assert (one.verdict, one.rules, one.reason) == (Verdict.ASK, "rules-1", "the rules say ask")
    assert one.refusal is None


def test_a_refused_call_keeps_its_text_cut_with_the_digest_of_the_whole() -> None:
    text = '{"n": "' + "é" * 3000
    (one,) = admitted(calls(ToolCall("c1", "look", text))).calls
    assert one.refusal is not None
    assert (one.refusal.kind, one.arguments, one.verdict) == ("invalid_arguments", "{}", Verdict.DENY)
    assert len(one.refusal.raw) < 1025
    assert one.refusal.raw_bytes == len(text.encode())
    assert one.refusal.raw_digest == hashlib.sha256(text.encode()).hexdigest()
    assert len(one.refusal.message.encode()) <= REFUSAL_BYTES_MOST


def test_an_unknown_tool_is_told_at_most_fifty_names() -> None:
    tools: Any = {f"tool{n:03}": look for n in range(60)}
    (one,) = admitted(calls(call("nobody")), tools=tools).calls
    assert one.refusal is not None
    assert one.refusal.kind == "unknown_tool"
    assert one.refusal.message.count("tool0") == 50
    assert "and 10 more" in one.refusal.message
    (none,) = admitted(calls(call("nobody")), tools={}).calls
    assert none.refusal is not None
    assert "tools: none" in none.refusal.message


@pytest.mark.parametrize("name", [7, None, "x" * 1000, "half \ud800", "nul \0"])
def test_a_name_that_is_none_is_an_unknown_tool_in_words_that_can_be_stored(name: Any) -> None:
    (one,) = admitted(calls(ToolCall("c1", name, "{}"))).calls
    assert one.refusal is not None
    assert one.refusal.kind == "unknown_tool"
    for text in (one.name, one.refusal.message):
        text.encode()
        assert "\0" not in text
    assert len(one.name) <= 128


def test_arguments_that_are_no_text_are_refused() -> None:
    reply = calls(ToolCall("c1", "nobody", {"n": 1}))  # type: ignore[arg-type]
    (one,) = admitted(reply).calls
    assert one.refusal is not None
    assert one.refusal.raw == "<class 'dict'>"


@pytest.mark.parametrize("finish", [Finish.LENGTH, Finish.FILTER, Finish.ERROR, Finish.UNKNOWN])
def test_nothing_is_prepared_in_a_reply_that_may_not_be_executed(finish: Finish) -> None:
    reply = replace(calls(call("look", n=1), call("look", n="x")), finish=finish)
    entry, prepared = admit(
        reply, asked(), tools={"look": look}, boundary=Says(), principal="ada", step=2, attempt=1
    )
    assert prepared == {}
    assert [c.refusal.kind for c in entry.calls if c.refusal] == ["not_executed"] * 2


@pytest.mark.parametrize(
    ("finish", "is_taken_as"),
    [
        ("stop", Finish.STOP),
        ("tool_calls", Finish.TOOL_CALLS),
        ("eos", Finish.UNKNOWN),
        (None, Finish.UNKNOWN),
    ],
)
def test_a_finish_is_taken_by_its_word_and_anything_else_is_unknown(finish: Any, is_taken_as: Finish) -> None:
    entry = admitted(replace(calls(call("look")), finish=finish))
    assert entry.finish is is_taken_as
    assert (entry.calls[0].refusal is None) == (is_taken_as is not Finish.UNKNOWN)


# --- ids


@pytest.mark.parametrize("bad", ["", None, 7, "x" * (ID_CHARS_MOST + 1), "nul\0", "half\ud800", "old"])
def test_an_id_that_cannot_be_sent_back_is_replaced_by_one_that_replays_the_same(bad: Any) -> None:
    state = asked(earlier=("old", "fp-2-0", "fp-2-0-1"))
    reply = calls(ToolCall(bad, "look", "{}"), ToolCall("fine", "look", "{}"))
    first, second = admitted(reply, state), admitted(reply, state)
    assert [c.sent_id for c in first.calls] == ["fp-2-0-2", "fine"]
    assert first == second
    assert isinstance(first.calls[0].id, str)


def test_two_equal_ids_go_back_as_two() -> None:
    entry = admitted(calls(ToolCall("same", "look", "{}"), ToolCall("same", "look", "{}")))
    assert [c.id for c in entry.calls] == ["same", "same"]
    assert [c.sent_id for c in entry.calls] == ["same", "fp-2-1"]


# --- charges


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, (100, 500)),
        (Usage(), (100, 500)),
        (Usage(10, None), (100, 500)),
        (Usage(None, 5), (100, 500)),
        (Usage(None, None, cost_nano=7), (100, 7)),
        (Usage(10, 5), (15, 10 * 2 + 5 * 3)),
        (Usage(10, 5, cost_nano=9), (15, 9)),
        (Usage(0, 0), (0, 0)),
    ],
)
def test_a_reply_is_charged_what_is_known_and_its_reservation_where_nothing_is(
    usage: Usage | None, expected: tuple[int, int]
) -> None:
    assert charge(usage, asked()) == expected


def test_a_model_without_a_price_costs_nobody_knows_what() -> None:
    assert charge(Usage(10, 5), asked(profile=ModelProfile("free?"))) == (15, None)


def test_usage_below_zero_is_unknown_and_the_rest_is_kept() -> None:
    assert believable(Usage(-1, 5, cached_input_tokens=-2, cost_nano=3)) == Usage(None, 5, cost_nano=3)
    assert believable(Usage(0, 5)) == Usage(0, 5)
    assert believable(None) is None


# --- cited answers

CLAIM = {"text": "one", "evidence_id": "ev-1.0", "quote": "1"}


def test_an_answer_is_the_step_and_no_tool_call() -> None:
    entry = admitted(answer("It is one.", CLAIM, id="a1"), asked(cited=True, earlier=("c1",)))
    assert (entry.calls, entry.answer_problem) == ((), "")
    assert entry.answer is not None
    assert entry.answer.summary == "It is one."
    assert (entry.answer_id, entry.answer_sent_id) == ("a1", "a1")
    assert entry.answer_arguments.startswith("{")


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (Reply("It is one."), "plain text is no answer here"),
        (calls(ToolCall("a1", "answer", "{")), "JSON"),
        (calls(ToolCall("a1", "answer", None)), "no text"),  # type: ignore[arg-type]
        (calls(ToolCall("a1", "answer", '{"x":"' + "x" * MAX_BYTES + '"}')), "longer than"),
        (calls(call("answer"), call("answer")), "2 answers in one reply"),
    ],
)
def test_an_answer_that_is_none_says_what_is_wrong(reply: Reply, problem: str) -> None:
    entry = admitted(reply, asked(cited=True))
    assert problem in entry.answer_problem
    assert entry.answer is None


def test_siblings_of_an_answer_are_kept_beside_it() -> None:
    one = answer("It is one.", CLAIM)
    entry = admitted(replace(one, calls=(call("look"), *one.calls)), asked(cited=True, earlier=("c1",)))
    assert ([c.name for c in entry.calls], entry.answer is None) == (["look"], False)


def test_a_model_that_calls_no_tools_gives_its_answer_as_text() -> None:
    plain = ModelProfile("plain", calls_tools=False)
    given = answer("It is one.", CLAIM).calls[0].arguments
    entry = admitted(Reply(given), asked(cited=True, profile=plain))
    assert entry.answer is not None
    assert (entry.answer_sent_id, entry.answer_arguments) == ("", "")
    assert "JSON" in admitted(Reply("It is one."), asked(cited=True, profile=plain)).answer_problem


@pytest.mark.parametrize("reply", [calls(call("look")), Reply(" \n")])
def test_calls_and_empty_replies_are_no_answers(reply: Reply) -> None:
    entry = admitted(reply, asked(cited=True))
    assert (entry.answer, entry.answer_problem, entry.answer_sent_id) == (None, "", "")


def test_an_answer_in_a_reply_that_was_cut_off_is_not_looked_at() -> None:
    cut = replace(answer("It is one.", CLAIM), finish=Finish.LENGTH)
    entry = admitted(cut, asked(cited=True))
    assert (entry.answer, entry.answer_problem, entry.calls) == (None, "", ())
