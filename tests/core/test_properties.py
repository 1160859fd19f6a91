"""Properties of the core over random journals: what is folded, decided and closed, whatever happened.

A journal is made as a run makes one: `decide` says what is next, and chance says what the world brings. So every
journal is well-formed, and every branch of the machine is reached with every other.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fencepost.core.closing import closing
from fencepost.core.decide import (
    AskModel,
    AskPeople,
    AwaitCalls,
    Reconcile,
    Record,
    Rest,
    StartCalls,
    Stop,
    decide,
)
from fencepost.core.entries import (
    AdmittedCall,
    ApprovalAsked,
    AttemptFailed,
    CallEnded,
    CallStatus,
    EntryBody,
    ModelAsked,
    Opened,
    Stopped,
    decode_body,
    encode_body,
    kind_of,
)
from fencepost.core.lifecycle import StopReason
from fencepost.core.messages import Finish, ToolMessage
from fencepost.core.recovery import Recovery
from fencepost.core.state import State, apply, fold, in_flight, lost, resumed
from tests.core import tables

# A journal that chance keeps alive for longer shows nothing new.
MOVES_MOST = 40
RECOVERIES = (*[Recovery.default()] * 3, replace(Recovery.strict(), one_call_per_reply=False))
NAMES = ("read", "slow", "put", "write", "pay", "gone")


def opening(draw: st.DrawFn) -> Opened:
    """Entry 1 with budgets that chance can reach."""
    return tables.opened(
        recovery=draw(st.sampled_from(RECOVERIES)),
        steps=draw(st.sampled_from((4, 4, 3, 2, 1))),
        tool_calls=draw(st.sampled_from((50, 50, 6, 3, 1, 0))),
        parallel_calls=draw(st.integers(1, 3)),
        tokens=draw(st.sampled_from((5000, 5000, 300))),
    )


def some_call(draw: st.DrawFn, step: int, position: int) -> AdmittedCall:
    """A call that is allowed, asked about, denied or refused; now and then with an id that was used before."""
    given = draw(st.sampled_from((f"{step}-{position}",) * 29 + ("again",)))
    kind = draw(st.sampled_from(("allowed",) * 6 + ("asking",) * 3 + ("denied", "refused")))
    name, number = draw(st.sampled_from(NAMES)), draw(st.integers(0, 1))
    match kind:
        case "refused":
            return tables.refused(name, given=given)
        case "denied":
            return tables.denied(name, given=given, n=number)
        case "asking":
            return tables.asking(name, given=given, n=number)
        case _:
            return tables.call(name, given=given, n=number)


def heard(draw: st.DrawFn, asked: ModelAsked) -> EntryBody:
    """A reply of words or calls, or an attempt that failed."""
    step, attempt = asked.step, asked.attempt
    what = draw(st.sampled_from(("calls",) * 12 + ("failure",) * 2 + ("words", "cut")))
    if what == "failure":
        return AttemptFailed(step, attempt, "connect", retry_in=1.0, charged_tokens=40, charged_nano=80)
    if what == "words":
        return tables.replied(step, text="done", attempt=attempt)
    calls = tuple(some_call(draw, step, position) for position in range(draw(st.integers(1, 4))))
    finish = Finish.LENGTH if what == "cut" else Finish.TOOL_CALLS
    return tables.replied(step, *calls, attempt=attempt, finish=finish)


def landed(draw: st.DrawFn, state: State) -> tuple[State, list[EntryBody]]:
    """One call in flight ends, or its end will not be heard."""
    position = draw(st.sampled_from(in_flight(state)))
    status = draw(st.sampled_from((CallStatus.OK, CallStatus.OK, CallStatus.FAILED, None)))
    if status is None:
        return lost(state, (position,), cause="timeout"), []
    content = draw(st.sampled_from(("one", "two")))
    return state, [tables.ended(state.steps, position, status, content)]


def decided_by_people(draw: st.DrawFn, state: State) -> list[EntryBody]:
    """People answer one question."""
    ask = draw(st.sampled_from(state.open_asks))
    if ask.about == "outcome":
        verdict = draw(st.sampled_from(("happened", "did_not_happen", "cannot_tell")))
        return [tables.resolved(ask.step, ask.position, verdict)]
    decision = draw(st.sampled_from(("approved", "approved", "rejected", "expired")))
    return [tables.decided(ask.step, ask.position, decision)]


def brought(draw: st.DrawFn, state: State, move: Any) -> tuple[State, list[EntryBody]]:
    """What a move leads to, with chance in the place of the world."""
    step = state.steps
    match move:
        case AskModel():
            asked = ModelAsked(move.step, move.attempt, move.reserved_tokens, move.reserved_nano, "model")
            return state, [asked, heard(draw, asked)]
        case StartCalls(positions):
            return state, [tables.started(step, p, state.open[p].starts + 1) for p in positions]
        case AwaitCalls():
            return landed(draw, state)
        case AskPeople(positions, about):
            return state, [ApprovalAsked(tuple(tables.question(step, p, about) for p in positions))]
        case Reconcile(position):
            verdict = draw(st.sampled_from(("happened", "did_not_happen", "cannot_tell")))
            return state, [tables.resolved(step, position, verdict, "reconcile")]
        case Record(bodies):
            return state, list(bodies)
        case Rest():
            return state, decided_by_people(draw, state)
        case _:
            raise AssertionError(move)


@st.composite
def journals(draw: st.DrawFn) -> list[EntryBody]:
    """A journal as some run would have made it; it may end anywhere, with a stop or without."""
    bodies: list[EntryBody] = [opening(draw)]
    state = replace(fold(bodies), profile=tables.PROFILE)
    for _ in range(draw(st.sampled_from((MOVES_MOST, MOVES_MOST, MOVES_MOST, 9, 5, 3, 0)))):
        move = decide(state, 0.0)
        if isinstance(move, Stop):
            bodies.extend(closing(state, move.reason, answer=move.answer, partial=move.partial))
            break
        state, more = brought(draw, state, move)
        bodies.extend(more)
        state = fold(more, state)
        if draw(st.integers(0, 19)) == 0:  # the run dies, and another claims the task
            state = resumed(fold(bodies), tables.PROFILE)
    return bodies


def picture(state: State) -> object:
    """Everything in a state, copied out, so that a later look can tell whether it changed."""
    logs = (state.messages, state.ids, state.done, state.writes)
    keys = [(name, key) for name in NAMES for key in (tables.call(name, n=0), tables.call(name, n=1))]
    found = [state.done.positions((name, key.digest)) for name, key in keys]
    return [list(log) for log in logs], found, repr(state)


@given(journals(), st.data())
@settings(max_examples=200, deadline=None)
def test_folding_a_prefix_and_then_the_rest_is_folding_all(bodies: list[EntryBody], data: Any) -> None:
    cut = data.draw(st.integers(0, len(bodies)))
    assert fold(bodies[cut:], fold(bodies[:cut])) == fold(bodies)


@given(journals())
@settings(max_examples=200, deadline=None)
def test_a_state_never_changes_whatever_is_applied_to_it_afterwards(bodies: list[EntryBody]) -> None:
    states, pictures = [State()], [picture(State())]
    for body in bodies:
        states.append(apply(states[-1], body))
        pictures.append(picture(states[-1]))
    for state, body in zip(
        states, bodies, strict=False
    ):  # again, so that each log branches from an old version
        apply(state, body)
    assert [picture(state) for state in states] == pictures


@given(journals())
@settings(max_examples=200, deadline=None)
def test_the_same_facts_give_the_same_move_whoever_folded_them(bodies: list[EntryBody]) -> None:
    stored = [decode_body(kind_of(body), 1, encode_body(body)) for body in bodies]
    one, two = resumed(fold(bodies), tables.PROFILE), resumed(fold(stored), tables.PROFILE)
    assert decide(one, 0.0) == decide(one, 0.0) == decide(two, 0.0)


@given(journals(), st.sampled_from(StopReason))
@settings(max_examples=200, deadline=None)
def test_closing_closes_any_journal(bodies: list[EntryBody], reason: StopReason) -> None:
    state = fold(bodies)
    if state.is_over:
        return
    whole = [*bodies, *closing(state, reason)]
    assert isinstance(whole[-1], Stopped)
    assert_closed(whole)
    over = fold(whole)
    assert over.open_asks == ()
    assert decide(over, 0.0) == Rest("over")


@given(journals())
@settings(max_examples=200, deadline=None)
def test_a_journal_that_came_to_its_end_is_closed_within_its_limits(bodies: list[EntryBody]) -> None:
    opened, stopped = bodies[0], bodies[-1]
    assert isinstance(opened, Opened)
    if not isinstance(stopped, Stopped):
        return
    assert_closed(bodies)
    state, limits = fold(bodies), opened.limits
    assert state.steps <= limits.steps
    starts = [body for body in bodies if kind_of(body) == "CallStarted"]
    assert len({(body.step, body.position) for body in starts}) <= limits.tool_calls  # type: ignore[union-attr]
    assert (stopped.reason is StopReason.COMPLETED) is (stopped.answer is not None and not stopped.partial)


def assert_closed(bodies: list[EntryBody]) -> None:
    """Every call has one result, in the transcript in the order the model asked; one stop, the last entry."""
    calls = [(b.step, p) for b in bodies if kind_of(b) == "Replied" for p in range(len(b.calls))]  # type: ignore[union-attr]
    ends = [(b.step, b.position) for b in bodies if isinstance(b, CallEnded)]
    assert sorted(ends) == sorted(calls)
    said = [c.sent_id for b in bodies if kind_of(b) == "Replied" for c in b.calls]  # type: ignore[union-attr]
    results = [m.call_id for m in fold(bodies).messages if isinstance(m, ToolMessage)]
    assert results == said
    assert [kind_of(body) for body in bodies].index("Stopped") == len(bodies) - 1
