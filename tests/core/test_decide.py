"""The table of the machine: a journal so far, and the next move.

A row reads: name, journal, move. The journal is what `tables` builds; `brief` says a move in a few words. Rows
stand in the order of decide.py, which is the order of precedence of contract 3.6.
"""

from __future__ import annotations

from typing import Any, NamedTuple, assert_never

import pytest
from msgspec.structs import replace

from fencepost.core.decide import (
    AskModel,
    AskPeople,
    AwaitCalls,
    Move,
    Reconcile,
    Record,
    Rest,
    StartCalls,
    Stop,
    decide,
)
from fencepost.core.entries import (
    Answer,
    AnswerRejected,
    AttemptFailed,
    CallEnded,
    CallStatus,
    ChildEnded,
    Claim,
    EntryBody,
    Stopped,
)
from fencepost.core.lifecycle import StopReason
from fencepost.core.messages import Effect, Finish, ModelProfile, Usage
from fencepost.core.recovery import OnUnknown, Reaction, Recovery
from fencepost.core.state import RELEASED, State, lost
from tests.core import tables
from tests.core.tables import (
    asked,
    asking,
    asks,
    at,
    call,
    decided,
    denied,
    ended,
    opened,
    reclaimed,
    refused,
    replied,
    resolved,
    started,
)

STRICT, TELL, STOP = Recovery.strict(), Reaction.TELL_MODEL, Reaction.STOP
DEFAULT = Recovery.default()


class Row(NamedTuple):
    """One line of the table. `seconds` is the task time used."""

    name: str
    state: State
    move: str
    seconds: float = 0.0


def brief(move: Move, *, holding: bool = False) -> str:
    """A move in a few words; what it reserves only where a row is about that."""
    match move:
        case AskModel():
            wait = f" after {move.delay:g} s" if move.delay else ""
            held = f" holding {move.reserved_tokens}" if holding else ""
            return f"ask {move.step}.{move.attempt}{held}{wait}"
        case StartCalls():
            return f"start {_numbers(move.positions)}"
        case AwaitCalls():
            return "await"
        case AskPeople():
            return f"people {move.about} {_numbers(move.positions)}"
        case Reconcile():
            return f"reconcile {move.position}"
        case Record():
            return "record " + ", ".join(map(_fact, move.bodies))
        case Stop():
            kept = f" partial {move.answer.summary!r}" if move.partial and move.answer else ""
            said = f" {move.answer.summary!r}" if move.answer and not move.partial else ""
            return f"stop {move.reason}{kept}{said}"
        case Rest():
            return f"rest {move.why}"
        case _:
            assert_never(move)


def _numbers(positions: tuple[int, ...]) -> str:
    return " ".join(map(str, positions))


def _fact(body: EntryBody) -> str:
    match body:
        case CallEnded():
            return f"{body.position} {body.status} {body.failure}".rstrip()
        case AttemptFailed():
            return f"attempt {body.attempt} {body.kind} charged {body.charged_tokens}"
        case AnswerRejected():
            return f"rejected {body.reason} {body.call_id}".rstrip()
        case _:
            raise AssertionError(body)


def reply(*bodies: EntryBody, **task: Any) -> State:
    """The state after the first reply of a task, and what came after it."""
    return at(opened(**task), asked(), *bodies)


def crashed(*bodies: EntryBody, **task: Any) -> State:
    """The same as a run sees it that claimed the task afterwards."""
    return reclaimed(opened(**task), asked(), *bodies)


def twice(name: str, *, contents: tuple[str, str] = ("same", "same"), between: str = "") -> list[EntryBody]:
    """Two steps with the same call, and perhaps a third call between."""
    bodies: list[EntryBody] = []
    for step, content in enumerate(contents, 1):
        bodies += [asked(step), replied(step, call(name, f"id{step}", n=1)), started(step)]
        bodies += [ended(step, content=content)]
        if between and step == 1:
            extra: list[EntryBody] = [
                asked(9),
                replied(9, call(between, "between", n=9)),
                started(9),
                ended(9),
            ]
            bodies += extra
    return bodies


OPEN = opened()
CITED = opened(answer="cited")
SEEN = (asked(), replied(1, call("read", "id1", n=1)), started(1), ended(1, content='{"rate": 8}', json=True))
CLAIM = Claim("the rate was 8", "ev-1.0", pointer="/rate", value=tables.raw("8"))
GOOD = tables.answer("the rate is 8", CLAIM)
WRONG = tables.answer("the rate is 8", replace(CLAIM, evidence_id="ev-9.0"))


def cites(answer: Answer | None, *calls: Any, problem: str = "", sent: str = "a", **more: Any) -> Any:
    """A second reply that gives a cited answer."""
    return replied(
        2, *calls, answer=answer, answer_problem=problem, answer_id=sent, answer_sent_id=sent, **more
    )


def cited(body: Any, *, recovery: Recovery = DEFAULT, **limit: Any) -> State:
    """A task that has one result and then the answer."""
    return at(opened(answer="cited", recovery=recovery, **limit), *SEEN, asked(2), body)


FAILED = AttemptFailed(1, 1, "connect", retry_in=2.0, charged_tokens=40, charged_nano=80)
BEGINNING = [
    Row("a task that was just opened asks", at(OPEN), "ask 1.1"),
    Row("a task that is over rests", at(OPEN, Stopped(StopReason.CANCELLED)), "rest over"),
    Row("a task that waits for people rests", reply(replied(1, asking("write")), asks(1)), "rest waits"),
    Row("waiting is not timed", reply(replied(1, asking("write")), asks(1)), "rest waits", seconds=1e6),
    Row("at its deadline a task stops", at(OPEN), "stop TASK_TIMEOUT", seconds=600.0),
    Row("just before its deadline it goes on", at(OPEN), "ask 1.1", seconds=599.9),
    Row(
        "at its deadline a valid answer is kept as partial",
        reply(replied(1, text="yes")),
        "stop TASK_TIMEOUT partial 'yes'",
        seconds=600.0,
    ),
    Row(
        "at its deadline an answer that was cut off is no answer",
        reply(replied(1, text="ye", finish=Finish.LENGTH)),
        "stop TASK_TIMEOUT",
        seconds=600.0,
    ),
    Row(
        "at its deadline a request that nobody heard is left to the stop",
        reclaimed(OPEN, asked()),
        "stop TASK_TIMEOUT",
        seconds=600.0,
    ),
]
ATTEMPTS = [
    Row(
        "a request of a run that died is charged whole",
        reclaimed(OPEN, asked()),
        "record attempt 1 crash charged 40",
    ),
    Row("a failed attempt is made again", at(OPEN, asked(), FAILED), "ask 1.2 after 2 s"),
    Row(
        "the third failed attempt is the last",
        at(
            OPEN,
            asked(),
            FAILED,
            asked(1, 2),
            replace(FAILED, attempt=2),
            asked(1, 3),
            replace(FAILED, attempt=3),
        ),
        "stop LLM_ERROR",
    ),
    Row(
        "an attempt that a shutdown gave back is not counted as a failure",
        at(OPEN, *[b for n in (1, 2, 3) for b in (asked(1, n), replace(FAILED, attempt=n, kind=RELEASED))]),
        "ask 1.4 after 2 s",
    ),
    Row(
        "an attempt that may not be repeated ends the task",
        at(OPEN, asked(), replace(FAILED, retry_in=None)),
        "stop LLM_ERROR",
    ),
    Row(
        "an attempt that took too long ends it with its own name",
        at(OPEN, asked(), replace(FAILED, kind="timeout", retry_in=None)),
        "stop LLM_TIMEOUT",
    ),
    Row(
        "a context that is too long ends it with its own name",
        at(OPEN, asked(), replace(FAILED, kind="overflow", retry_in=None)),
        "stop CONTEXT_OVERFLOW",
    ),
    Row(
        "failed attempts use up tokens",
        at(opened(tokens=40), asked(), FAILED),
        "stop TOKEN_BUDGET_EXCEEDED",
    ),
]
DEAR = ModelProfile("dear", bytes_per_token=3, max_output_tokens=100)
MONEY = [
    Row("the last step is taken", at(opened(tools=(), steps=1)), "ask 1.1 holding 102"),
    Row(
        "after the last step nothing is asked",
        reply(replied(1, call("read")), started(1), ended(1), steps=1),
        "stop MAX_STEPS_EXHAUSTED",
    ),
    Row(
        "an unknown price and a cost limit do not go together",
        replace(at(opened(tools=(), cost_nano=1000)), profile=DEAR),
        "stop UNKNOWN_PRICE",
    ),
    Row("an unknown price alone does", replace(at(opened(tools=())), profile=DEAR), "ask 1.1 holding 102"),
    Row(
        "a price that became unknown stops too",
        at(opened(tools=(), cost_nano=1000), asked(nano=None), replace(FAILED, charged_nano=None)),
        "stop UNKNOWN_PRICE",
    ),
    Row("output is asked for up to what is left", at(opened(tools=(), tokens=50)), "ask 1.1 holding 50"),
    Row(
        "a prompt that leaves no token for output is not sent",
        at(opened(tools=(), tokens=2)),
        "stop TOKEN_BUDGET_EXCEEDED",
    ),
    Row(
        "a request that may cost too much is not sent",
        at(opened(tools=(), cost_nano=201)),
        "stop COST_BUDGET_EXCEEDED",
    ),
    Row("a prompt that leaves one token for output is", at(opened(tools=(), tokens=3)), "ask 1.1 holding 3"),
    Row(
        "what was spent counts towards what a request may cost",
        reply(replied(1, call("gone"), nano=300), started(1), ended(1), tools=(), cost_nano=400),
        "stop COST_BUDGET_EXCEEDED",
    ),
    Row("one that just fits is", at(opened(tools=(), cost_nano=202)), "ask 1.1 holding 102"),
    Row(
        "the size of the next prompt is that of the last and what came since",
        reply(replied(1, call("read", "i")), started(1), ended(1, content="x" * 298), tools=()),
        "ask 2.1 holding 253",
    ),
]
UNFIT = [
    Row("a refused reply stops", reply(replied(1, text="no", finish=Finish.REFUSAL)), "stop REFUSED"),
    Row("a filtered reply stops", reply(replied(1, call("read"), finish=Finish.FILTER)), "stop REFUSED"),
    Row("a cut reply stops", reply(replied(1, call("read"), finish=Finish.LENGTH)), "stop TRUNCATED_REPLY"),
    Row(
        "an unknown finish stops", reply(replied(1, text="x", finish=Finish.UNKNOWN)), "stop INVALID_DECISION"
    ),
    Row("an error finish stops", reply(replied(1, text="x", finish=Finish.ERROR)), "stop INVALID_DECISION"),
    Row("an empty reply stops", reply(replied(1, text=" \n")), "stop INVALID_DECISION"),
    Row(
        "too many calls stop",
        reply(replied(1, call("read", n=1), call("read", n=2)), calls_per_reply=1),
        "stop INVALID_DECISION",
    ),
    Row(
        "as many as are allowed do not",
        reply(replied(1, call("read", n=1), call("read", n=2)), calls_per_reply=2),
        "start 0 1",
    ),
    Row(
        "with strict recovery two calls stop",
        reply(replied(1, call("read", n=1), call("read", n=2)), recovery=STRICT),
        "stop INVALID_DECISION",
    ),
    Row(
        "with strict recovery an answer beside a call stops",
        cited(cites(GOOD, call("read", n=2)), recovery=STRICT),
        "stop INVALID_DECISION",
    ),
    Row(
        "with strict recovery words beside a call stop",
        reply(replied(1, call("read"), text="so"), recovery=STRICT),
        "stop INVALID_DECISION",
    ),
    Row("with strict recovery one call starts", reply(replied(1, call("read")), recovery=STRICT), "start 0"),
    Row("words beside a call are commentary", reply(replied(1, call("read"), text="so")), "start 0"),
    Row(
        "an id twice in a reply stops",
        reply(replied(1, call("read", "i", n=1), call("read", "i", n=2))),
        "stop DUPLICATE_CALL_ID",
    ),
    Row("an empty id stops", reply(replied(1, call("read", ""))), "stop DUPLICATE_CALL_ID"),
    Row("an empty name stops", reply(replied(1, call("", "i"))), "stop DUPLICATE_CALL_ID"),
    Row(
        "an id of an earlier step stops",
        reply(
            replied(1, call("read", "i")), started(1), ended(1), asked(2), replied(2, call("read", "i", n=2))
        ),
        "stop DUPLICATE_CALL_ID",
    ),
    Row("an answer's id twice stops", cited(cites(GOOD, sent="id1")), "stop DUPLICATE_CALL_ID"),
    Row(
        "the first of several faults names the stop: refused before cut, cut before invalid, invalid before id",
        reply(replied(1, call("read", ""), call("read", ""), finish=Finish.LENGTH), calls_per_reply=1),
        "stop TRUNCATED_REPLY",
    ),
    Row(
        "an invalid reply comes before a duplicate id",
        reply(replied(1, call("read", ""), call("read", "")), calls_per_reply=1),
        "stop INVALID_DECISION",
    ),
    Row(
        "a duplicate id comes before the budget",
        reply(replied(1, call("read", "")), tokens=10),
        "stop DUPLICATE_CALL_ID",
    ),
]
TOLD = replace(DEFAULT, refused=TELL, truncated=TELL, duplicate_call_id=TELL, invalid_reply=TELL)
UNFIT_TOLD = [
    Row(
        "told: a cut reply without calls is said to be one",
        reply(replied(1, text="x", finish=Finish.LENGTH), recovery=TOLD),
        "record rejected truncated",
    ),
    Row(
        "told: each call of a refused reply gets its result",
        reply(replied(1, call("read", n=1), call("read", n=2), finish=Finish.REFUSAL), recovery=TOLD),
        "record 0 not_executed refused, 1 not_executed refused",
    ),
    Row(
        "told: both calls with one id get a result",
        reply(replied(1, call("read", "i", n=1), call("read", "i", n=2)), recovery=TOLD),
        "record 0 not_executed duplicate_call_id, 1 not_executed duplicate_call_id",
    ),
    Row(
        "told: an answer that is cut off is the result of its own call",
        cited(cites(GOOD, call("read", n=2), finish=Finish.LENGTH), recovery=TOLD),
        "record 0 not_executed truncated, rejected truncated a",
    ),
    Row(
        "told: after the results the model is asked again",
        reply(
            replied(1, call("read"), finish=Finish.LENGTH),
            ended(1, status=CallStatus.NOT_EXECUTED, failure="truncated"),
            recovery=TOLD,
        ),
        "ask 2.1",
    ),
]
SPENT = ChildEnded("child", StopReason.COMPLETED, charged_tokens=100)
BUDGET = [
    Row(
        "a reply that crosses the token limit stops",
        reply(replied(1, call("read")), tokens=14),
        "stop TOKEN_BUDGET_EXCEEDED",
    ),
    Row("one that just reaches it does not", reply(replied(1, call("read")), tokens=15), "start 0"),
    Row(
        "a text answer that crosses it is kept as partial",
        reply(replied(1, text="yes"), tokens=14),
        "stop TOKEN_BUDGET_EXCEEDED partial 'yes'",
    ),
    Row(
        "a reply that crosses the cost limit stops",
        reply(replied(1, text="yes", nano=500), cost_nano=499),
        "stop COST_BUDGET_EXCEEDED partial 'yes'",
    ),
    Row(
        "one that just reaches it does not cross it",
        reply(replied(1, text="yes", nano=500), cost_nano=500),
        "stop COMPLETED 'yes'",
    ),
    Row(
        "what a child spent does not stop a reply that has begun",
        reply(replied(1, call("slow", n=1), call("slow", n=2)), started(1), ended(1), SPENT, tokens=20),
        "start 1",
    ),
    Row(
        "nor one that people have decided about",
        reply(replied(1, asking("write")), asks(1), decided(1), SPENT, tokens=20),
        "start 0",
    ),
    Row(
        "a reply of unknown cost stops where cost is limited",
        reply(replied(1, call("read"), nano=None), cost_nano=499),
        "stop COST_BUDGET_EXCEEDED",
    ),
    Row("a reply of unknown cost is fine elsewhere", reply(replied(1, call("read"), nano=None)), "start 0"),
    Row(
        "a cited answer that crosses it is kept as partial",
        cited(cites(GOOD), tokens=29),
        "stop TOKEN_BUDGET_EXCEEDED partial 'the rate is 8'",
    ),
    Row("a wrong one is not kept", cited(cites(WRONG), tokens=29), "stop TOKEN_BUDGET_EXCEEDED"),
    Row(
        "one that is none is not kept",
        cited(cites(None, problem="x"), tokens=29),
        "stop TOKEN_BUDGET_EXCEEDED",
    ),
    Row(
        "words are no partial answer where citations are asked for",
        cited(replied(2, text="8"), tokens=29),
        "stop TOKEN_BUDGET_EXCEEDED",
    ),
]
ANSWERS = [
    Row("words are the answer", reply(replied(1, text="yes")), "stop COMPLETED 'yes'"),
    Row("a cited answer that holds is the answer", cited(cites(GOOD)), "stop COMPLETED 'the rate is 8'"),
    Row("its siblings do not run", cited(cites(GOOD, call("write", n=1))), "stop COMPLETED 'the rate is 8'"),
    Row("a wrong citation is told", cited(cites(WRONG)), "record rejected invalid_evidence a"),
    Row(
        "a malformed answer is told, its siblings closed",
        cited(cites(None, call("read", n=2), problem="no claims")),
        "record 0 not_executed answer_in_reply, rejected invalid_evidence a",
    ),
    Row("with strict recovery it stops", cited(cites(WRONG), recovery=STRICT), "stop INVALID_EVIDENCE"),
    Row(
        "the second wrong answer stops",
        at(
            CITED,
            *SEEN,
            asked(2),
            cites(WRONG),
            AnswerRejected(2, "invalid_evidence", "no", "a"),
            asked(3),
            replied(3, answer=WRONG, answer_id="b", answer_sent_id="b"),
        ),
        "stop INVALID_EVIDENCE",
    ),
    Row(
        "after a wrong answer the model is asked again",
        at(CITED, *SEEN, asked(2), cites(WRONG), AnswerRejected(2, "invalid_evidence", "no", "a")),
        "ask 3.1",
    ),
]
PER_CALL = [
    Row(
        "an unknown tool is told, its good sibling waits for that",
        reply(replied(1, refused("nope", "unknown_tool"), call("read"))),
        "record 0 failed unknown_tool",
    ),
    Row(
        "then the sibling runs",
        reply(
            replied(1, refused("nope", "unknown_tool"), call("read")),
            ended(1, 0, CallStatus.FAILED, failure="unknown_tool"),
        ),
        "start 1",
    ),
    Row(
        "with strict recovery an unknown tool stops",
        reply(replied(1, refused("nope", "unknown_tool")), recovery=STRICT),
        "stop TOOL_DENIED",
    ),
    Row(
        "with strict recovery wrong arguments stop",
        reply(replied(1, refused("read")), recovery=STRICT),
        "stop INVALID_ARGUMENTS",
    ),
    Row("wrong arguments are told", reply(replied(1, refused("read"))), "record 0 failed invalid_arguments"),
    Row(
        "wrong arguments may stop where an unknown tool may not",
        reply(
            replied(1, refused("nope", "unknown_tool"), refused("read", given="r2")),
            recovery=replace(DEFAULT, invalid_arguments=STOP),
        ),
        "stop INVALID_ARGUMENTS",
    ),
    Row("a denied call is told", reply(replied(1, denied("write"))), "record 0 denied denied"),
    Row(
        "with strict recovery a denied call stops",
        reply(replied(1, denied("write")), recovery=STRICT),
        "stop TOOL_DENIED",
    ),
    Row(
        "the first in order names the stop",
        reply(
            replied(1, denied("write"), refused("read")), recovery=replace(STRICT, one_call_per_reply=False)
        ),
        "stop TOOL_DENIED",
    ),
    Row(
        "a call past the budget stops nothing before it ran",
        reply(
            replied(1, call("read"), refused("read")),
            recovery=replace(STRICT, one_call_per_reply=False),
            tool_calls=1,
        ),
        "record 1 not_executed budget",
    ),
]
LOST_RECORDS = [
    Row("a lost read runs again", crashed(replied(1, call("slow")), started(1)), "start 0"),
    Row(
        "lost parallel reads run again together",
        crashed(replied(1, call("read", n=1), call("read", n=2)), started(1, 0), started(1, 1)),
        "start 0 1",
    ),
    Row(
        "a lost idempotent call runs again and asks nobody",
        crashed(replied(1, asking("put")), asks(1), decided(1), started(1)),
        "start 0",
    ),
    Row(
        "a lost write waits for a person", crashed(replied(1, call("write")), started(1)), "people outcome 0"
    ),
    Row(
        "two lost writes wait together",
        lost(
            reply(replied(1, call("write", n=1), call("write", n=2)), started(1, 0), started(1, 1)),
            (0, 1),
            cause="timeout",
        ),
        "people outcome 0 1",
    ),
    Row(
        "a write of a tool that is gone waits too",
        crashed(replied(1, call("gone")), started(1)),
        "people outcome 0",
    ),
    Row(
        "a lost write is told where recovery says so",
        crashed(
            replied(1, call("write")),
            started(1),
            recovery=replace(DEFAULT, unknown_outcome=OnUnknown.TELL_MODEL),
        ),
        "record 0 unknown outcome_unknown",
    ),
    Row(
        "a lost write stops where recovery says so",
        crashed(replied(1, call("write")), started(1), recovery=STRICT),
        "stop TOOL_OUTCOME_UNKNOWN",
    ),
    Row(
        "a tool that can look back is asked first",
        crashed(replied(1, call("pay")), started(1)),
        "reconcile 0",
    ),
    Row(
        "asked first with strict recovery too",
        crashed(replied(1, call("pay")), started(1), recovery=STRICT),
        "reconcile 0",
    ),
    Row(
        "when it cannot tell, a person is asked",
        crashed(replied(1, call("pay")), started(1), resolved(1, 0, "cannot_tell", "reconcile")),
        "people outcome 0",
    ),
    Row(
        "a tool that could not tell is not asked twice",
        crashed(
            replied(1, call("pay")),
            started(1),
            resolved(1, 0, "cannot_tell", "reconcile"),
            asks(1, about="outcome"),
            resolved(1, 0, "cannot_tell"),
        ),
        "record 0 unknown outcome_unknown",
    ),
    Row(
        "when it happened, its result is taken",
        crashed(replied(1, call("pay")), started(1), resolved(1, 0, "happened", "reconcile", "paid")),
        "record 0 ok",
    ),
    Row(
        "a person's word is a result, and marked",
        crashed(replied(1, call("write")), started(1), asks(1, about="outcome"), resolved(1)),
        "record 0 ok confirmed_by_person",
    ),
    Row(
        "what did not happen runs again, without another question",
        crashed(
            replied(1, asking("write")),
            asks(1),
            decided(1),
            started(1),
            asks(1, about="outcome"),
            resolved(1, 0, "did_not_happen"),
        ),
        "start 0",
    ),
    Row(
        "what a person cannot tell is told the model",
        crashed(
            replied(1, call("write")), started(1), asks(1, about="outcome"), resolved(1, 0, "cannot_tell")
        ),
        "record 0 unknown outcome_unknown",
    ),
    Row(
        "one answered, one lost again: the answered one first",
        crashed(
            replied(1, call("write", n=1), call("write", n=2)),
            started(1, 0),
            started(1, 1),
            asks(1, 0, 1, about="outcome"),
            resolved(1, 0),
            resolved(1, 1, "cannot_tell"),
        ),
        "record 0 ok confirmed_by_person",
    ),
    Row(
        "a lost write beside a call in flight waits for that",
        lost(
            reply(replied(1, call("write"), call("read")), started(1, 0), started(1, 1)),
            (0,),
            cause="timeout",
        ),
        "await",
    ),
]
CALLS = [
    Row("a call that asks is asked about", reply(replied(1, asking("write"))), "people approval 0"),
    Row(
        "all that ask are asked about at once, before anything runs",
        reply(replied(1, call("read"), asking("write", n=1), asking("put", n=2))),
        "people approval 1 2",
    ),
    Row("an approved call starts", reply(replied(1, asking("write")), asks(1), decided(1)), "start 0"),
    Row(
        "an approved second waits for the first",
        reply(replied(1, call("slow"), asking("write")), asks(1, 1), decided(1, 1)),
        "start 0",
    ),
    Row(
        "a rejected call is told",
        reply(replied(1, asking("write")), asks(1), decided(1, 0, "rejected", "no")),
        "record 0 denied rejected",
    ),
    Row(
        "an expired question is told",
        reply(replied(1, asking("write")), asks(1), decided(1, 0, "expired")),
        "record 0 denied expired",
    ),
    Row(
        "with strict recovery a rejection stops",
        reply(
            replied(1, asking("write")),
            asks(1),
            decided(1, 0, "rejected"),
            ended(1, 0, CallStatus.DENIED, failure="rejected"),
            recovery=STRICT,
        ),
        "stop TOOL_DENIED",
    ),
    Row(
        "a half answered reply rests",
        reply(replied(1, asking("write", n=1), asking("write", n=2)), asks(1, 0, 1), decided(1, 0)),
        "rest waits",
    ),
    Row(
        "calls past the budget are closed first",
        reply(replied(1, call("slow", n=1), call("slow", n=2), call("slow", n=3)), tool_calls=1),
        "record 1 not_executed budget, 2 not_executed budget",
    ),
    Row(
        "then those within it run",
        reply(
            replied(1, call("slow", n=1), call("slow", n=2)),
            ended(1, 1, CallStatus.NOT_EXECUTED, failure="budget"),
            tool_calls=1,
        ),
        "start 0",
    ),
    Row(
        "then the budget stops",
        reply(
            replied(1, call("slow", n=1), call("slow", n=2)),
            ended(1, 1, CallStatus.NOT_EXECUTED, failure="budget"),
            started(1, 0),
            ended(1, 0),
            tool_calls=1,
        ),
        "stop MAX_TOOL_CALLS_EXHAUSTED",
    ),
    Row(
        "without a budget nothing runs",
        reply(replied(1, call("slow")), tool_calls=0),
        "record 0 not_executed budget",
    ),
    Row(
        "a failed call is told",
        reply(replied(1, call("slow")), started(1), ended(1, 0, CallStatus.FAILED)),
        "ask 2.1",
    ),
    Row(
        "with strict recovery a failed call stops",
        reply(replied(1, call("slow")), started(1), ended(1, 0, CallStatus.FAILED), recovery=STRICT),
        "stop TOOL_ERROR",
    ),
    Row(
        "a call that timed out may stop",
        reply(
            replied(1, call("slow")), started(1), ended(1, 0, CallStatus.TIMEOUT, failure=""), recovery=STRICT
        ),
        "stop TOOL_TIMEOUT",
    ),
    Row(
        "a failure that stops keeps the next call from starting",
        reply(
            replied(1, call("slow", n=1), call("slow", n=2)),
            started(1),
            ended(1, 0, CallStatus.FAILED),
            recovery=replace(STRICT, one_call_per_reply=False),
        ),
        "stop TOOL_ERROR",
    ),
    Row(
        "refused arguments are no tool error",
        reply(
            replied(1, refused("read")),
            ended(1, 0, CallStatus.FAILED, failure="invalid_arguments"),
            recovery=replace(DEFAULT, tool_error=STOP),
        ),
        "ask 2.1",
    ),
    Row(
        "a body that does not take its arguments is no tool error",
        reply(
            replied(1, call("read")),
            started(1),
            ended(1, 0, CallStatus.FAILED, failure="invalid_arguments"),
            recovery=replace(DEFAULT, tool_error=STOP),
        ),
        "ask 2.1",
    ),
    Row(
        "a body that does not take its arguments stops by the policy for arguments",
        reply(
            replied(1, call("read")),
            started(1),
            ended(1, 0, CallStatus.FAILED, failure="invalid_arguments"),
            recovery=STRICT,
        ),
        "stop INVALID_ARGUMENTS",
    ),
    Row(
        "a call whose tool was dropped stops by the policy for unknown tools",
        reply(
            replied(1, call("read")),
            ended(1, 0, CallStatus.FAILED, failure="unknown_tool"),
            recovery=STRICT,
        ),
        "stop TOOL_DENIED",
    ),
    Row(
        "an outcome that stays unknown goes on",
        reply(
            replied(1, call("write")),
            started(1),
            ended(1, 0, CallStatus.UNKNOWN),
            recovery=replace(STRICT, unknown_outcome=OnUnknown.TELL_MODEL),
        ),
        "ask 2.1",
    ),
]
ORDER = [
    Row(
        "calls that are not parallel start one by one",
        reply(replied(1, call("slow", n=1), call("slow", n=2))),
        "start 0",
    ),
    Row(
        "the second starts when the first has ended",
        reply(replied(1, call("slow", n=1), call("slow", n=2)), started(1), ended(1)),
        "start 1",
    ),
    Row(
        "the second waits while the first runs",
        reply(replied(1, call("slow", n=1), call("slow", n=2)), started(1)),
        "await",
    ),
    Row(
        "adjacent parallel calls start together",
        reply(replied(1, call("read", n=1), call("read", n=2), call("slow"))),
        "start 0 1",
    ),
    Row(
        "at most parallel_calls of them",
        reply(replied(1, *(call("read", n=n) for n in range(6)))),
        "start 0 1 2 3",
    ),
    Row(
        "another starts when one has ended",
        reply(
            replied(1, *(call("read", n=n) for n in range(3))),
            started(1, 0),
            started(1, 1),
            ended(1, 1),
            parallel_calls=2,
        ),
        "start 2",
    ),
    Row(
        "none starts while all places are taken",
        reply(
            replied(1, *(call("read", n=n) for n in range(3))), started(1, 0), started(1, 1), parallel_calls=2
        ),
        "await",
    ),
    Row(
        "one that is not parallel is a barrier",
        reply(replied(1, call("read", n=1), call("slow"), call("read", n=2)), started(1, 0)),
        "await",
    ),
    Row(
        "nothing passes the barrier",
        reply(replied(1, call("read", n=1), call("slow"), call("read", n=2)), started(1, 0), ended(1, 0)),
        "start 1",
    ),
    Row(
        "what is behind a running one waits",
        reply(replied(1, call("slow"), call("read")), started(1, 0)),
        "await",
    ),
    Row(
        "a failure that will stop lets no sibling start",
        reply(
            replied(1, *(call("read", n=n) for n in range(3))),
            started(1, 0),
            started(1, 1),
            ended(1, 0, CallStatus.FAILED),
            recovery=replace(DEFAULT, tool_error=STOP),
        ),
        "await",
    ),
    Row(
        "any other failure does",
        reply(
            replied(1, *(call("read", n=n) for n in range(3))),
            started(1, 0),
            started(1, 1),
            ended(1, 0, CallStatus.FAILED),
        ),
        "start 2",
    ),
]


def third(name: str, *, verdict: Any = call, recovery: Recovery = DEFAULT, **more: Any) -> State:
    """A third step with the same call."""
    return at(
        opened(recovery=recovery), *twice(name, **more), asked(3), replied(3, verdict(name, given="id3", n=1))
    )


REPEATS = [
    Row("the third equal call with equal results stops", third("slow"), "stop REPEATED_TOOL_CALL"),
    Row(
        "the second does not",
        at(OPEN, *twice("slow")[:4], asked(2), replied(2, call("slow", "id2", n=1))),
        "start 0",
    ),
    Row(
        "with strict recovery the second stops",
        at(opened(recovery=STRICT), *twice("slow")[:4], asked(2), replied(2, call("slow", "id2", n=1))),
        "stop REPEATED_TOOL_CALL",
    ),
    Row("a different result resets", third("slow", contents=("one", "two")), "start 0"),
    Row("a write between resets", third("slow", between="write"), "start 0"),
    Row("a read between does not", third("slow", between="read"), "stop REPEATED_TOOL_CALL"),
    Row("a write repeats itself", third("write"), "stop REPEATED_TOOL_CALL"),
    Row("a tool may be asked as often as it likes", third("poll"), "start 0"),
    Row("recovery may never mind", third("slow", recovery=replace(DEFAULT, repeats=1)), "start 0"),
    Row(
        "other arguments are another call",
        at(OPEN, *twice("slow"), asked(3), replied(3, call("slow", "id3", n=2))),
        "start 0",
    ),
    Row("nobody is asked about a repeated call", third("write", verdict=asking), "stop REPEATED_TOOL_CALL"),
    Row("a repeated call that is denied stops", third("slow", verdict=denied), "stop REPEATED_TOOL_CALL"),
    Row(
        "a person is asked when something before the call may change its result",
        at(OPEN, *twice("write"), asked(3), replied(3, call("put", "p"), asking("write", "id3", n=1))),
        "people approval 1",
    ),
    Row(
        "a read before it changes nothing",
        at(OPEN, *twice("write"), asked(3), replied(3, call("read", "p"), asking("write", "id3", n=1))),
        "stop REPEATED_TOOL_CALL",
    ),
    Row(
        "a repeated call waits until its siblings have ended",
        at(OPEN, *twice("read"), asked(3), replied(3, call("read", "x", n=7), call("read", "id3", n=1))),
        "start 0",
    ),
    Row(
        "and stops then",
        at(
            OPEN,
            *twice("read"),
            asked(3),
            replied(3, call("read", "x", n=7), call("read", "id3", n=1)),
            started(3),
            ended(3),
        ),
        "stop REPEATED_TOOL_CALL",
    ),
    Row(
        "while a sibling runs it waits",
        at(
            OPEN,
            *twice("read"),
            asked(3),
            replied(3, call("read", "x", n=7), call("read", "id3", n=1)),
            started(3),
        ),
        "await",
    ),
    Row(
        "a call that starts again is not a repetition",
        reclaimed(OPEN, *twice("slow"), asked(3), replied(3, call("slow", "id3", n=1)), started(3)),
        "start 0",
    ),
    Row(
        "a refusal that reads the same is an equal result",
        at(
            OPEN,
            *(
                b
                for n in (1, 2)
                for b in (
                    asked(n),
                    replied(n, denied("write", given=f"i{n}")),
                    replace(ended(n, 0, CallStatus.DENIED, "denied: no"), digest=""),
                )
            ),
            asked(3),
            replied(3, denied("write", given="i3")),
        ),
        "stop REPEATED_TOOL_CALL",
    ),
    Row(
        "one that reads differently is not",
        at(
            OPEN,
            *(
                b
                for n in (1, 2)
                for b in (
                    asked(n),
                    replied(n, denied("write", given=f"i{n}")),
                    replace(ended(n, 0, CallStatus.DENIED, f"no {n}"), digest=""),
                )
            ),
            asked(3),
            replied(3, denied("write", given="i3")),
        ),
        "record 0 denied denied",
    ),
]
TABLE = [
    *BEGINNING,
    *ATTEMPTS,
    *MONEY,
    *UNFIT,
    *UNFIT_TOLD,
    *BUDGET,
    *ANSWERS,
    *PER_CALL,
    *LOST_RECORDS,
    *CALLS,
    *ORDER,
    *REPEATS,
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_journal_has_one_next_move(row: Row) -> None:
    assert brief(decide(row.state, row.seconds), holding="holding" in row.move) == row.move


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_the_same_facts_give_the_same_move(row: Row) -> None:
    assert decide(row.state, row.seconds) == decide(row.state, row.seconds)


def test_names_of_rows_are_unique() -> None:
    assert len({row.name for row in TABLE}) == len(TABLE)


def test_a_reservation_holds_prompt_and_output_with_their_price() -> None:
    move = decide(at(opened(prompt="x" * 30, tools=())), 0.0)
    profile = tables.PROFILE
    # The prompt's 30 bytes at 3 a token and the most output; priced 1 and 2 nano-units a token.
    assert isinstance(move, AskModel)
    assert (move.reserved_tokens, move.max_output_tokens) == (10 + 100, profile.max_output_tokens)
    assert move.reserved_nano == 10 * 1 + 100 * 2


def test_unknown_usage_leaves_the_size_of_the_prompt_to_its_bytes() -> None:
    with_usage = reply(replied(1, call("slow", "i")), started(1), ended(1))
    without = reply(replied(1, call("slow", "i"), usage=Usage(output_tokens=5)), started(1), ended(1))
    first, second = decide(with_usage, 0.0), decide(without, 0.0)
    assert isinstance(first, AskModel)
    assert isinstance(second, AskModel)
    grown = with_usage.size_bytes - with_usage.sized_bytes
    assert first.reserved_tokens == 10 + -(-grown // 3) + 100
    assert second.reserved_tokens == -(-without.size_bytes // 3) + 100


def test_words_where_citations_are_asked_for_are_a_bug_of_admission() -> None:
    with pytest.raises(AssertionError, match="admission"):
        decide(at(CITED, asked(), replied(1, text="8")), 0.0)


def test_a_run_that_names_no_model_and_a_journal_that_was_never_opened_are_bugs() -> None:
    with pytest.raises(AssertionError, match="model"):
        decide(tables.folded(OPEN), 0.0)
    with pytest.raises(AssertionError, match="Opened"):
        decide(State(), 0.0)


def test_every_effect_has_a_tool_in_the_table() -> None:
    assert {tool.effect for tool in tables.TOOLS} == set(Effect)


WORDS = [
    (reply(replied(1, denied("write"))), "denied: the rules do not allow this call"),
    (reply(replied(1, denied("write", "too dear"))), "denied: too dear"),
    (reply(replied(1, denied("write")), recovery=STRICT), "write is denied"),
    (reply(replied(1, denied("write", "too dear")), recovery=STRICT), "too dear"),
    (reply(replied(1, asking("write")), asks(1), decided(1, 0, "rejected", "too dear")), "rejected: too dear"),
    (reply(replied(1, asking("write")), asks(1), decided(1, 0, "expired")), "expired: nobody allowed this call"),
    (crashed(replied(1, call("write")), started(1), recovery=STRICT), "write: crash"),
    (
        reply(replied(1, call("slow")), started(1), ended(1, 0, CallStatus.FAILED), recovery=STRICT),
        "slow: tool_error",
    ),
    (
        reply(replied(1, call("slow")), started(1), ended(1, 0, CallStatus.TIMEOUT, failure=""), recovery=STRICT),
        "slow: timeout",
    ),
    (reply(replied(1, call("slow")), tool_calls=0), "budget: the task may make 0 tool calls"),
    (
        reply(replied(1, call("read", "i", n=1), call("read", "i", n=2)), recovery=TOLD),
        "not executed: duplicate_call_id: every call needs an id that is not empty and new in this task",
    ),
    (
        reply(replied(1, text="x", finish=Finish.LENGTH), recovery=TOLD),
        "Your last reply could not be used: the reply was cut off.",
    ),
    (
        crashed(replied(1, call("write")), started(1), recovery=replace(DEFAULT, unknown_outcome=OnUnknown.TELL_MODEL)),
        "outcome unknown, do not repeat",
    ),
    (
        cited(cites(WRONG)),
        "The answer was not taken: 'ev-9.0' is not a successful result of this task; obtained: ev-1.0; ",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("state", "words"), WORDS, ids=[words for _, words in WORDS])
def test_a_model_and_a_reader_are_told_what_was_wrong(state: State, words: str) -> None:
    move = decide(state, 0.0)
    if isinstance(move, Stop):
        assert move.detail == words
        return
    assert isinstance(move, Record)
    body = move.bodies[0]
    assert isinstance(body, CallEnded | AnswerRejected)
    said = body.content if isinstance(body, CallEnded) else body.problem
    assert said.startswith(words)
