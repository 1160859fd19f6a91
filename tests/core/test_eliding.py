"""Which results a model stops seeing, in what order, and what stands in their place.

Sizes are chosen so that one big result is about a thousand tokens of the profile: 3 bytes a token.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fencepost.core.decide import AskModel, Record, Stop, decide
from fencepost.core.entries import AnswerRejected, CallStatus, ContextElided, EntryBody
from fencepost.core.lifecycle import StopReason
from fencepost.core.messages import AssistantMessage, ToolMessage, Usage
from fencepost.core.state import State, evidence_of, fold, prompt_tokens
from tests.core import tables
from tests.core.tables import answer, asked, call, digest, ended, opened, refused, replied, started

BIG = "x" * 3000
UNREPORTED: Any = None


def step(number: int, content: str = BIG, usage: Usage | None = UNREPORTED, **more: Any) -> list[EntryBody]:
    """One step that calls one tool; nobody reports what its request held."""
    made = call("slow", f"i{number}", n=number)
    return [
        asked(number),
        replied(number, made, usage=usage),
        started(number),
        ended(number, content=content, **more),
    ]


def journal(*steps: list[EntryBody], **task: Any) -> list[EntryBody]:
    return [opened(**task), *(body for one in steps for body in one)]


def knowing(context: int, *bodies: EntryBody) -> State:
    """The state in which a model decides that takes so many tokens, a hundred of them for its reply."""
    return replace(fold(bodies), profile=replace(tables.PROFILE, context_tokens=context))


def left_out(state: State) -> list[tuple[int, int]]:
    """The calls whose results the next move leaves out."""
    move = decide(state, 0.0)
    assert isinstance(move, Record)
    assert all(isinstance(body, ContextElided) for body in move.bodies)
    return [(body.step, body.position) for body in move.bodies if isinstance(body, ContextElided)]


def after(state: State) -> State:
    """The state once what the next move leaves out is recorded."""
    move = decide(state, 0.0)
    assert isinstance(move, Record)
    return fold(move.bodies, state)


def test_nothing_is_left_out_where_the_context_is_not_known() -> None:
    assert isinstance(decide(tables.at(*journal(*map(step, range(1, 9)))), 0.0), AskModel)


def test_a_request_that_just_fits_is_sent_whole_and_one_token_more_is_not() -> None:
    bodies = journal(*map(step, range(1, 4)))
    tokens = prompt_tokens(knowing(1, *bodies)) + 100
    assert isinstance(decide(knowing(tokens, *bodies), 0.0), AskModel)
    assert left_out(knowing(tokens - 1, *bodies))[0] == (1, 0)


def test_the_oldest_results_go_first_until_there_is_room_for_more_than_one_step() -> None:
    state = knowing(8000, *journal(*map(step, range(1, 9))))
    assert left_out(state) == [(1, 0), (2, 0), (3, 0)]
    assert prompt_tokens(after(state)) <= (8000 - 100) * 3 // 4
    assert isinstance(decide(after(state), 0.0), AskModel)


def test_the_results_of_the_last_step_stay_whatever_their_size() -> None:
    state = knowing(4000, *journal(step(1), step(2, BIG * 3)))
    assert left_out(state) == [(1, 0)]
    last = after(state).messages[-1]
    assert isinstance(last, ToolMessage)
    assert last.content == BIG * 3


def test_nothing_is_left_out_in_vain() -> None:
    state = knowing(2000, *journal(step(1), step(2, BIG * 3)))
    move = decide(state, 0.0)
    assert isinstance(move, Stop)
    assert move.reason is StopReason.CONTEXT_OVERFLOW
    assert move.detail == f"{prompt_tokens(state)} tokens to send and 100 to receive, model takes 2000"


def test_a_prompt_that_never_fits_stops_the_task_before_it_is_sent() -> None:
    move = decide(knowing(200, opened(prompt=BIG)), 0.0)
    assert isinstance(move, Stop)
    assert move.reason is StopReason.CONTEXT_OVERFLOW


def test_a_spent_budget_is_named_before_a_context_that_overflows() -> None:
    move = decide(knowing(200, opened(prompt=BIG, tokens=500)), 0.0)
    assert isinstance(move, Stop)
    assert move.reason is StopReason.TOKEN_BUDGET_EXCEEDED


def test_what_is_already_short_stays() -> None:
    state = knowing(3200, *journal(step(1, "short"), step(2), step(3), step(4, BIG)))
    assert left_out(state)[0] == (2, 0)


def test_a_result_goes_once() -> None:
    state = after(knowing(3200, *journal(*map(step, range(1, 4)))))
    again = fold(step(4), state)
    assert left_out(again) == [(2, 0)]


def test_every_result_of_a_step_is_one_of_its_own() -> None:
    two: list[EntryBody] = [
        asked(1),
        replied(1, call("read", "a", n=1), call("read", "b", n=2), usage=None),
        started(1), ended(1, content=BIG), started(1, 1), ended(1, 1, content=BIG),
    ]  # fmt: skip
    state = knowing(3000, *journal(two, step(2)))
    assert left_out(state) == [(1, 0), (1, 1)]


def test_the_replacement_names_evidence_size_and_digest() -> None:
    state = after(knowing(3200, *journal(*map(step, range(1, 4)))))
    assert (
        said(state, 0)
        == f"[left out to fit the context: ev-1.0, the result of slow, 3000 bytes, sha256 {digest(BIG)}]"
    )


def test_the_replacement_says_how_a_stored_whole_is_read_again_where_that_is_offered() -> None:
    offered = (*tables.TOOLS, tables.tool("read_artifact"))
    steps = [step(1, artifact=digest(BIG)), step(2), step(3)]
    state = after(knowing(2200, *journal(*steps, tools=offered)))
    assert said(state, 0).endswith(f"sha256 {digest(BIG)}; read_artifact reads it again by its digest]")
    assert "read_artifact" not in said(state, 1)  # it was shown whole, so no artifact was kept
    assert "read_artifact" not in said(after(knowing(3200, *journal(*steps))), 0)


def test_a_failed_result_is_left_out_without_a_name_to_cite_it_by() -> None:
    state = after(knowing(3200, *journal(step(1, status=CallStatus.FAILED), step(2), step(3))))
    assert said(state, 0).startswith("[left out to fit the context: the result of slow, 3000 bytes, sha256 ")
    failed = [m.failed for m in state.messages if isinstance(m, ToolMessage)]
    assert failed == [True, False, False]


def test_a_persons_word_is_left_out_without_a_name_to_cite_it_by() -> None:
    state = after(knowing(3200, *journal(step(1, failure="confirmed_by_person"), step(2), step(3))))
    assert said(state, 0).startswith("[left out to fit the context: the result of slow, 3000 bytes, sha256 ")


def test_a_long_refusal_is_left_out_too() -> None:
    no = refused("slow", message=BIG)
    refusal: list[EntryBody] = [
        asked(1),
        replied(1, no, usage=None),
        replace(ended(1, content=BIG, status=CallStatus.FAILED), digest=""),
    ]
    state = after(knowing(3200, *journal(refusal, step(2), step(3))))
    assert said(state, 0) == "[left out to fit the context: the result of slow]"


def test_words_calls_and_answers_that_were_not_taken_stay() -> None:
    rejected = replied(2, answer=answer("x"), answer_sent_id="a1", answer_id="a1", usage=None)
    problem = AnswerRejected(2, "invalid_evidence", BIG, "a1")
    bodies = [*journal(step(1), [asked(2), rejected, problem], step(3), answer="cited")]
    before = knowing(2800, *bodies)
    kept = [m for m in before.messages if not (isinstance(m, ToolMessage) and m.name == "slow")]
    assert left_out(before) == [(1, 0)]
    assert [
        m for m in after(before).messages if not (isinstance(m, ToolMessage) and m.name == "slow")
    ] == kept
    assert any(isinstance(m, AssistantMessage) for m in kept)


def test_a_result_that_was_left_out_stays_evidence_with_what_the_model_had_seen() -> None:
    state = after(knowing(3200, *journal(*map(step, range(1, 4)))))
    assert evidence_of(state)["ev-1.0"].content == BIG


def test_what_is_left_out_frees_the_tokens_that_were_reported_for_it() -> None:
    """Six bytes made a token in the request that was reported, so half of its bytes are half of its tokens."""
    bodies = journal(step(1), step(2), step(3, usage=Usage(input_tokens=1000, output_tokens=5)))
    state = knowing(2100, *bodies)
    gone = after(state)
    removed = state.size_bytes - gone.size_bytes
    assert gone.sized_bytes == state.sized_bytes - removed
    assert gone.input_tokens == -(-1000 * gone.sized_bytes // state.sized_bytes)
    assert 0 < gone.input_tokens < 1000
    assert prompt_tokens(gone) - gone.input_tokens == prompt_tokens(state) - state.input_tokens


def test_a_replacement_longer_than_what_it_replaces_counts_as_new() -> None:
    before = tables.at(*journal(step(1, "ok", usage=tables.USAGE)))
    state = fold([ContextElided(1, 0, "i1", "y" * 302)], before)
    assert prompt_tokens(state) == prompt_tokens(before) + 100


def test_a_result_that_is_not_there_cannot_be_left_out() -> None:
    before = tables.at(*journal(step(1)))
    assert fold([ContextElided(7, 0, "i7", "gone")], before) == before


def said(state: State, number: int) -> str:
    """What the model sees of a result, by its number in the transcript."""
    return [m.content for m in state.messages if isinstance(m, ToolMessage)][number]


@pytest.mark.parametrize("text", ["é" * 3000, "語" * 1000, "a"])
def test_bytes_are_counted_and_not_characters(text: str) -> None:
    before, grown = tables.at(opened(prompt="")), tables.at(opened(prompt=text))
    assert grown.size_bytes - before.size_bytes == len(text.encode())


SIZES = st.lists(st.integers(0, 6000), min_size=1, max_size=12)


@given(SIZES, st.integers(300, 12_000), st.booleans())
def test_a_request_fits_or_is_not_sent_and_one_record_is_enough(
    sizes: list[int], context: int, reported: bool
) -> None:
    usage = Usage(input_tokens=sum(sizes) // 5 + 1, output_tokens=5) if reported else None
    steps = [step(n, "x" * size, usage=usage) for n, size in enumerate(sizes, 1)]
    state = knowing(context, *journal(*steps, steps=20))
    move = decide(state, 0.0)
    if isinstance(move, Record):
        last = state.messages[-1]
        assert all(body.step < len(sizes) for body in move.bodies if isinstance(body, ContextElided))
        state = fold(move.bodies, state)
        assert state.messages[-1] == last
        move = decide(state, 0.0)
        assert isinstance(move, AskModel)
    if isinstance(move, AskModel):
        assert prompt_tokens(state) + 100 <= context
    else:
        assert isinstance(move, Stop)
        assert move.reason is StopReason.CONTEXT_OVERFLOW
        assert not any("left out" in m.content for m in state.messages if isinstance(m, ToolMessage))
