"""What each kind of fact changes in a state, and nothing more."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fencepost.core.entries import (
    KINDS,
    AdmittedCall,
    AnswerRejected,
    AttemptFailed,
    CallStatus,
    ChildEnded,
    ChildOpened,
    ContextElided,
    DefinitionAccepted,
    EntryBody,
    Stopped,
)
from fencepost.core.lifecycle import StopReason
from fencepost.core.messages import (
    AssistantMessage,
    Effect,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    size_of,
)
from fencepost.core.state import (
    _APPLY,
    RELEASED,
    Phase,
    State,
    apply,
    definition_of,
    effect_of,
    evidence_of,
    fold,
    in_flight,
    lost,
    resumed,
)
from tests.core import tables
from tests.core.tables import (
    asked,
    asking,
    asks,
    call,
    decided,
    ended,
    folded,
    opened,
    replied,
    resolved,
    started,
)

ONE_WRITE = (call("write", "i"),)


def step(*bodies: EntryBody, calls: tuple[AdmittedCall, ...] = ONE_WRITE, **task: Any) -> State:
    """The state after a first reply with these calls, and what came after it."""
    return folded(opened(**task), asked(), replied(1, *calls), *bodies)


def test_apply_knows_every_kind_of_entry_and_no_other() -> None:
    assert {kind.__name__ for kind in _APPLY} == set(KINDS)


def test_opening_a_task_gives_its_prompt_tools_and_instructions() -> None:
    first = replace(opened(prompt="find it"), instructions="be brief")
    state = folded(first)
    assert state.opened is first
    assert state.instructions == "be brief"
    assert state.tools == {tool.name: tool for tool in tables.TOOLS}
    assert list(state.messages) == [UserMessage("find it")]
    sizes = sum(len(tool.schema) + len(tool.description) for tool in tables.TOOLS)
    assert state.size_bytes == len("find it") + len("be brief") + sizes
    assert not state.is_over


def test_a_request_reserves_until_its_reply_settles_it() -> None:
    state = folded(opened(), asked())
    assert state.asked == asked()
    assert (state.tokens, state.cost_nano) == (0, 0)
    state = apply(state, replied(1, text="x"))
    assert state.asked is None
    assert (state.tokens, state.cost_nano, state.steps) == (15, 20, 1)


def test_a_failed_attempt_settles_its_reservation_and_is_counted() -> None:
    state = folded(opened(), asked(), AttemptFailed(1, 1, "connect", charged_tokens=40, charged_nano=80))
    assert state.asked is None
    assert (state.tokens, state.cost_nano, state.attempts, state.steps) == (40, 80, 1, 0)
    assert state.failed is not None


def test_an_attempt_that_was_given_back_is_charged_and_not_counted() -> None:
    state = folded(opened(), asked(), AttemptFailed(1, 1, RELEASED, charged_tokens=40, charged_nano=80))
    assert (state.tokens, state.attempts) == (40, 0)


def test_a_reply_ends_the_count_of_attempts() -> None:
    failed = AttemptFailed(1, 1, "connect", charged_tokens=40)
    state = folded(opened(), asked(), failed, asked(1, 2), replied(1, text="x", attempt=2))
    assert (state.attempts, state.failed) == (0, None)


@pytest.mark.parametrize(
    "body", [replied(1, text="x", nano=None), AttemptFailed(1, 1, "connect", charged_nano=None)]
)
def test_an_unknown_cost_stays_unknown_whatever_is_added_to_it(body: Any) -> None:
    state = folded(opened(), asked(), body)
    assert state.cost_nano is None
    assert folded(opened(), asked(), body, asked(2), replied(2, text="y")).cost_nano is None


def test_the_provider_s_count_of_input_is_kept_with_the_size_it_was_for() -> None:
    state = folded(opened(), asked(), replied(1, text="x", usage=Usage(input_tokens=7, output_tokens=1)))
    assert state.input_tokens == 7
    assert state.sized_bytes == folded(opened()).size_bytes
    silent = folded(opened(), asked(), replied(1, text="x", usage=None))
    assert (silent.input_tokens, silent.sized_bytes) == (0, 0)
    free = folded(opened(), asked(), replied(1, text="x", usage=Usage(input_tokens=0, output_tokens=1)))
    assert free.sized_bytes > 0


def test_a_reply_is_said_once_with_the_ids_that_were_sent() -> None:
    sent = replace(call("read", "provider-id", n=1), sent_id="fp-1-0")
    state = folded(opened(), asked(), replied(1, sent, text="so"))
    said = AssistantMessage("so", (ToolCall("fp-1-0", "read", '{"n":1}'),))
    assert state.messages[-1] == said
    assert state.size_bytes == folded(opened()).size_bytes + size_of(said)


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_an_empty_reply_is_not_said(text: str) -> None:
    state = folded(opened(), asked(), replied(1, text=text))
    assert list(state.messages) == [UserMessage("do it")]


def test_an_answer_s_call_is_said_after_the_others_and_is_no_tool_call() -> None:
    body = replied(
        1, call("read", "i"), answer_problem="x", answer_id="a", answer_sent_id="fp", answer_arguments="{}"
    )
    state = folded(opened(answer="cited"), asked(), body)
    said = state.messages[-1]
    assert isinstance(said, AssistantMessage)
    assert [c.id for c in said.calls] == ["i", "fp"]
    assert (state.calls, len(state.open)) == (1, 1)


@pytest.mark.parametrize(
    ("first", "second", "duplicate"),
    [
        (call("read", "i"), call("read", "j"), False),
        (call("read", "i"), call("write", "i"), True),
        (call("read", ""), call("read", "j"), True),
        (call("", "i"), call("read", "j"), True),
    ],
)
def test_an_id_is_new_in_the_task_or_the_reply_is_marked(first: Any, second: Any, duplicate: bool) -> None:
    together = folded(opened(), asked(), replied(1, first, second))
    apart = folded(opened(), asked(), replied(1, first), ended(1), asked(2), replied(2, second))
    assert together.duplicate_id is duplicate
    assert apart.duplicate_id is (duplicate and bool(first.id and first.name))


def test_an_id_that_was_sent_in_another_s_place_is_used_up_as_well() -> None:
    sent = replace(call("read", "provider-id"), sent_id="fp-1-0")
    answered = replied(1, sent, answer_problem="x", answer_id="a", answer_sent_id="fp-1-1")
    state = folded(opened(answer="cited"), asked(), answered)
    assert [state.ids.has(id) for id in ("provider-id", "fp-1-0", "a", "fp-1-1", "j")] == [True] * 4 + [False]


@pytest.mark.parametrize("given", ["", "i"])
def test_an_answer_s_id_counts_too(given: str) -> None:
    body = replied(1, call("read", "i"), answer_problem="x", answer_id=given, answer_sent_id="fp")
    assert folded(opened(), asked(), body).duplicate_id
    assert not folded(opened(), asked(), replace(body, answer_id="other")).duplicate_id


def test_a_call_moves_from_asked_to_started_to_ended() -> None:
    assert step().open[0].phase is Phase.ASKED
    running = step(started(1, operation="pay-7"))
    assert (running.open[0].phase, running.open[0].starts) == (Phase.STARTED, 1)
    assert running.open[0].operation == "pay-7"
    assert in_flight(running) == (0,)
    over = step(started(1), ended(1))
    assert (over.open[0].phase, over.open[0].ended) == (Phase.ENDED, ended(1))
    assert in_flight(over) == ()


def test_results_are_said_when_all_have_ended_in_the_order_the_model_asked() -> None:
    calls = (call("read", "a"), call("slow", "b"))
    half = step(started(1, 0), started(1, 1), ended(1, 1, content="second"), calls=calls)
    assert isinstance(half.messages[-1], AssistantMessage)
    whole = apply(half, ended(1, 0, CallStatus.FAILED, "first"))
    assert whole.messages[-2:] == (
        ToolMessage("a", "read", "first", True),
        ToolMessage("b", "slow", "second"),
    )
    assert whole.size_bytes == half.size_bytes + sum(map(size_of, whole.messages[-2:]))


def test_a_result_carries_its_evidence_id_where_citations_are_asked_for() -> None:
    calls = (call("read", "a"), call("slow", "b"), call("put", "c"))
    facts = (
        ended(1, 0),
        ended(1, 1, CallStatus.FAILED),
        ended(1, 2, failure="confirmed_by_person"),
    )
    said = [
        m.evidence_id
        for m in step(*facts, calls=calls, answer="cited").messages
        if isinstance(m, ToolMessage)
    ]
    assert said == ["ev-1.0", "", ""]
    said = [m.evidence_id for m in step(*facts, calls=calls).messages if isinstance(m, ToolMessage)]
    assert said == ["", "", ""]


def test_evidence_is_what_a_tool_brought_and_nothing_else() -> None:
    calls = tuple(call("read", f"i{n}", n=n) for n in range(5))
    state = step(
        ended(1, 0),
        ended(1, 1, CallStatus.FAILED),
        ended(1, 2, failure="confirmed_by_person"),
        ended(1, 3, CallStatus.NOT_EXECUTED),
        ended(1, 4, CallStatus.UNKNOWN),
        calls=calls,
    )
    assert list(evidence_of(state)) == ["ev-1.0"]


def test_only_what_may_change_the_world_counts_as_written() -> None:
    calls = (call("read", "a"), call("put", "b"), call("write", "c"), call("gone", "d"))
    state = step(*(started(1, n) for n in range(4)), calls=calls)
    assert [name for name, _ in state.writes] == ["put", "write", "gone"]


def test_what_was_not_executed_or_had_no_arguments_is_not_a_call_that_was_made() -> None:
    state = step(
        ended(1, 0, CallStatus.NOT_EXECUTED),
        ended(1, 1, CallStatus.FAILED),
        ended(1, 2),
        calls=(call("read", "a"), tables.refused("read"), call("read", "c", n=2)),
    )
    assert [done.ended.position for done in state.done] == [2]


def test_a_question_makes_a_call_wait_and_an_approval_lets_it_go_on() -> None:
    calls = (asking("write", "a"), asking("put", "b"))
    waiting = step(asks(1, 0, 1), calls=calls)
    assert waiting.waits_for == "approval"
    assert [ask.position for ask in waiting.open_asks] == [0, 1]
    half = apply(waiting, decided(1, 0))
    assert (half.waits_for, len(half.open_asks)) == ("approval", 1)
    assert (half.open[0].phase, half.open[0].decision) == (Phase.ASKED, "approved")
    over = apply(half, decided(1, 1, "rejected", "too dear"))
    assert (over.waits_for, over.open_asks) == ("", ())
    assert (over.open[1].decision, over.open[1].decided_reason) == ("rejected", "too dear")


def test_an_approval_is_used_up_by_the_start() -> None:
    state = step(asks(1), decided(1), calls=(asking("write", "a"),))
    assert not state.open[0].consumed
    assert apply(state, started(1)).open[0].consumed


def test_asking_again_takes_an_earlier_approval_back() -> None:
    state = step(asks(1), decided(1), asks(1), calls=(asking("write", "a"),))
    assert (state.open[0].phase, state.open[0].decision) == (Phase.WAITING, "")


def test_a_decision_about_nothing_changes_nothing() -> None:
    state = step()
    assert apply(state, decided(1)) is state


def test_a_question_about_an_outcome_comes_first() -> None:
    calls = (call("write", "a"), asking("write", "b"))
    state = step(started(1), asks(1, 0, about="outcome"), asks(1, 1), calls=calls)
    assert state.waits_for == "outcome"


def test_what_happened_waits_for_its_record_and_what_did_not_may_start() -> None:
    base = step(started(1), asks(1, about="outcome"))
    happened = apply(base, resolved(1, content="done"))
    assert (happened.open[0].phase, happened.open[0].reconciled) == (Phase.LOST, False)
    again = apply(base, resolved(1, 0, "did_not_happen"))
    assert (again.open[0].phase, again.open[0].decision) == (Phase.ASKED, "approved")
    assert apply(again, started(1, 0, 2)).open[0].resolved is None
    looked = apply(step(started(1)), resolved(1, 0, "cannot_tell", "reconcile"))
    assert (looked.open[0].phase, looked.open[0].reconciled) == (Phase.LOST, True)
    assert apply(apply(looked, asks(1, about="outcome")), resolved(1, 0, "cannot_tell")).open[0].reconciled


def test_a_rejection_is_not_undone_by_a_word_about_the_outcome() -> None:
    calls = (asking("write", "a"),)
    state = step(asks(1), decided(1, 0, "rejected"), resolved(1, 0, "did_not_happen"), calls=calls)
    assert state.open[0].decision == "rejected"


def test_a_new_claim_loses_what_was_in_flight_and_nothing_else() -> None:
    calls = (call("read", "a"), call("write", "b"), call("slow", "c"))
    state = resumed(step(started(1, 0), started(1, 1), ended(1, 0), calls=calls), tables.PROFILE)
    assert [(c.phase, c.cause) for c in state.open] == [
        (Phase.ENDED, ""),
        (Phase.LOST, "crash"),
        (Phase.ASKED, ""),
    ]
    assert state.profile is tables.PROFILE


def test_only_a_started_call_can_be_lost() -> None:
    state = step(started(1, 1), calls=(call("read", "a"), call("write", "b")))
    gone = lost(state, (0, 1), cause="timeout")
    assert [(c.phase, c.cause) for c in gone.open] == [(Phase.ASKED, ""), (Phase.LOST, "timeout")]
    assert lost(state, (), cause="timeout") is state


def test_a_start_after_a_loss_forgets_the_loss() -> None:
    state = apply(lost(step(started(1)), (0,), cause="crash"), started(1, 0, 2))
    assert (state.open[0].phase, state.open[0].starts, state.open[0].cause) == (Phase.STARTED, 2, "")


def test_a_rejected_answer_is_said_as_the_result_of_its_call() -> None:
    state = step(AnswerRejected(1, "invalid_evidence", "no such id", "a1"))
    assert state.messages[-1] == ToolMessage("a1", "answer", "no such id", True)
    assert (state.answer_tries, state.reply, state.open) == (1, None, ())
    assert state.size_bytes == step().size_bytes + size_of(state.messages[-1])


def test_a_rejected_text_is_said_as_words_and_is_no_try_at_evidence() -> None:
    state = step(AnswerRejected(1, "truncated", "it was cut off"))
    assert state.messages[-1] == UserMessage("it was cut off")
    assert state.answer_tries == 0


def test_an_elided_result_is_replaced_for_the_model_and_stays_evidence() -> None:
    before = step(ended(1), calls=(call("read", "a"),))
    state = apply(before, ContextElided(1, 0, sent_id="a", replacement="a long log, elided"))
    assert state.messages[-1] == ToolMessage("a", "read", "a long log, elided")
    assert evidence_of(state)["ev-1.0"].content == "fine"
    assert list(state.messages)[:-1] == list(before.messages)[:-1]


def test_an_accepted_definition_replaces_tools_and_instructions() -> None:
    tool = tables.tool("read", Effect.WRITE)
    state = step(DefinitionAccepted("d2", (tool,), "new words", "local/boss"))
    assert (state.tools, state.instructions) == ({"read": tool}, "new words")
    assert definition_of(state, call("write")) is None
    assert effect_of(state, call("read")) is Effect.WRITE


def test_an_unknown_tool_counts_as_a_write() -> None:
    assert effect_of(step(), call("gone")) is Effect.WRITE
    assert effect_of(step(), call("put")) is Effect.IDEMPOTENT


def test_a_child_is_paid_by_its_parent_once_when_it_ends() -> None:
    state = step(ChildOpened(1, 0, "child"))
    assert state == step()
    paid = apply(state, ChildEnded("child", StopReason.COMPLETED, 100, 7))
    assert (paid.tokens, paid.cost_nano) == (state.tokens + 100, 27)


def test_a_stop_settles_what_was_still_reserved() -> None:
    stop = Stopped(StopReason.CANCELLED, settled_tokens=40, settled_nano=80)
    state = folded(opened(), asked(), stop)
    assert state.is_over
    assert state.stopped is stop
    assert (state.tokens, state.cost_nano, state.asked) == (40, 80, None)
    assert folded(opened(), stop).tokens == 0


def test_folding_the_rest_onto_a_prefix_is_folding_all() -> None:
    bodies: list[EntryBody] = [opened(), asked(), replied(1, call("read", "a")), started(1), ended(1)]
    for cut in range(len(bodies) + 1):
        assert fold(bodies[cut:], fold(bodies[:cut])) == fold(bodies)


def test_an_answer_s_id_is_used_up_like_any_other_id() -> None:
    body = replied(1, answer_problem="x", answer_id="a", answer_sent_id="a")
    after = folded(
        opened(answer="cited"), asked(), body, AnswerRejected(1, "invalid_evidence", "no", "a"), asked(2)
    )
    assert apply(after, replied(2, call("read", "a"))).duplicate_id
    assert not apply(after, replied(2, call("read", "b"))).duplicate_id
