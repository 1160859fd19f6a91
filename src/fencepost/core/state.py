"""`apply` folds the facts of a journal into the state that `decide` reads.

Rule 1: `apply` is total over a well-formed journal and free of judgement: it happened.
Rule 2: nothing here is stored; every field can be computed again from entry 1 on.
Rule 3: a call is in one phase, and phases only move forward within one start: ASKED, (WAITING,) STARTED, ENDED;
LOST is a start of which nobody will hear the end. A run that ends without a call's verdict, and a claim after a
crash, bring the same LOST (`lost`, `resumed`): six ways to lose an outcome, one answer (contract 8.3).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from fencepost.core.entries import (
    AdmittedCall,
    AnswerRejected,
    ApprovalAsked,
    ApprovalDecided,
    Ask,
    AttemptFailed,
    CallEnded,
    CallStarted,
    CallStatus,
    ChildEnded,
    ChildOpened,
    ContextElided,
    DefinitionAccepted,
    EntryBody,
    ModelAsked,
    Opened,
    OutcomeResolved,
    Replied,
    Stopped,
    evidence_id,
)
from fencepost.core.history import Log
from fencepost.core.messages import (
    AssistantMessage,
    Effect,
    Message,
    ModelProfile,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
    bytes_of,
    size_of,
)

ANSWER_TOOL = "answer"
# An attempt that was given back by a worker that shut down is nobody's failure (contract 7.4).
RELEASED = "released"


class Phase(enum.Enum):
    """Where one call of the open step is."""

    ASKED = "asked"
    WAITING = "waiting"
    STARTED = "started"
    LOST = "lost"
    ENDED = "ended"


class CallState(Struct, frozen=True, gc=False):
    """One call of the open step.

    `decision` is what a person said ("approved", "rejected", "expired"), `asked` the question they were asked;
    `consumed` that a start has used the approval; `resolved` a verdict on an unknown outcome; `cause` why the end
    of a start will not be heard.
    """

    call: AdmittedCall
    phase: Phase = Phase.ASKED
    starts: int = 0
    asked: Ask | None = None
    decision: str = ""
    decided_reason: str = ""
    consumed: bool = False
    resolved: OutcomeResolved | None = None
    reconciled: bool = False
    cause: str = ""
    operation: str = ""
    ended: CallEnded | None = None


class Done(Struct, frozen=True, gc=False):
    """One call that has a result; `writes_before` tells what was started since (contract 5, repeats)."""

    ended: CallEnded
    writes_before: int


class State(Struct, frozen=True, gc=False):
    """What a journal amounts to. `profile` is the model this run would ask; it is not part of the journal."""

    opened: Opened | None = None
    profile: ModelProfile | None = None
    tools: dict[str, ToolDefinition] = {}
    instructions: str = ""
    messages: Log[Message] = field(default_factory=Log)
    results: Log[int] = field(default_factory=Log)  # places in `messages`, by (step, position)
    elided_step: int = 0  # the newest step of which a result was left out
    size_bytes: int = 0
    ids: Log[None] = field(default_factory=Log)
    done: Log[Done] = field(default_factory=Log)
    writes: Log[tuple[str, str]] = field(default_factory=Log)
    steps: int = 0
    calls: int = 0
    tokens: int = 0
    cost_nano: int | None = 0
    input_tokens: int = 0
    sized_bytes: int = 0
    asked: ModelAsked | None = None
    attempts: int = 0
    failed: AttemptFailed | None = None
    reply: Replied | None = None
    duplicate_id: bool = False
    calls_before: int = 0
    open: tuple[CallState, ...] = ()
    answer_tries: int = 0
    stopped: Stopped | None = None

    @property
    def is_over(self) -> bool:
        """Whether the last entry has been written."""
        return self.stopped is not None

    @property
    def waits_for(self) -> str:
        """What people are asked before the task can go on: "approval", "outcome" or ""."""
        waiting = [c.asked.about for c in self.open if c.phase is Phase.WAITING and c.asked is not None]
        if not waiting:
            return ""
        return "outcome" if "outcome" in waiting else "approval"

    @property
    def open_asks(self) -> tuple[Ask, ...]:
        """The questions nobody has answered yet."""
        return tuple(c.asked for c in self.open if c.phase is Phase.WAITING and c.asked is not None)


def apply(state: State, body: EntryBody) -> State:
    """The state after one more fact."""
    return _APPLY[type(body)](state, body)


def fold(bodies: Iterable[EntryBody], state: State | None = None) -> State:
    """The state after all these facts."""
    state = State() if state is None else state
    for body in bodies:
        state = apply(state, body)
    return state


def resumed(state: State, profile: ModelProfile) -> State:
    """The state as a new claim finds it: what an earlier run had started and not ended is lost to it."""
    return replace(lost(state, in_flight(state), cause="crash"), profile=profile)


def lost(state: State, positions: Iterable[int], *, cause: str) -> State:
    """The state in which the ends of these started calls will not be heard; no entry, because no fact is new."""
    gone = frozenset(positions)
    if not gone:
        return state
    calls = tuple(
        replace(c, phase=Phase.LOST, cause=cause) if i in gone and c.phase is Phase.STARTED else c
        for i, c in enumerate(state.open)
    )
    return replace(state, open=calls)


def in_flight(state: State) -> tuple[int, ...]:
    """The positions that were started and have not ended."""
    return tuple(i for i, c in enumerate(state.open) if c.phase is Phase.STARTED)


def definition_of(state: State, call: AdmittedCall) -> ToolDefinition | None:
    """The definition the task knows a call's tool by."""
    return state.tools.get(call.name)


def effect_of(state: State, call: AdmittedCall) -> Effect:
    """The declared effect of a call; an unknown tool counts as the worst."""
    found = state.tools.get(call.name)
    return Effect.WRITE if found is None else found.effect


def result_of(state: State, step: int, position: int) -> tuple[int, ToolMessage] | None:
    """What the model sees of one call's result, and where in the transcript; None while the step is open."""
    at = state.results.find((step, position))
    if at is None:
        return None
    message = state.messages[at]
    assert isinstance(message, ToolMessage), "only results are found by their call"
    return at, message


def prompt_tokens(state: State) -> int:
    """The tokens of the next request at worst: the last reported ones, and what is new by the profile's divisor."""
    assert state.profile is not None, "a run names its model before it decides"
    grown = state.size_bytes - state.sized_bytes
    return state.input_tokens + -(-grown // state.profile.bytes_per_token)


def without(state: State, removed: int) -> State:
    """The state whose next request is so many bytes smaller; only its sizes change.

    Bytes that a reported request held are worth as many tokens as the mean of that request: what they are worth by
    the profile's divisor, which is made to count too many, would free more than there was.
    """
    if not 0 < removed < state.sized_bytes:  # no request that held them was reported
        return replace(state, size_bytes=state.size_bytes - removed)
    sized = state.sized_bytes - removed
    return replace(
        state,
        size_bytes=state.size_bytes - removed,
        sized_bytes=sized,
        input_tokens=-(-state.input_tokens * sized // state.sized_bytes),
    )


def repeat_key(call: AdmittedCall) -> tuple[str, str]:
    """What makes two calls the same: the tool and the digest of the canonical arguments."""
    return call.name, call.digest


def evidence_of(state: State) -> dict[str, CallEnded]:
    """Every result of this task that may be cited, by its id (contract 1, evidence).

    A person's word about a lost call is no result of the tool and no evidence.
    """
    return {
        evidence_id(done.ended.step, done.ended.position): done.ended
        for done in state.done
        if done.ended.status is CallStatus.OK and not done.ended.failure
    }


def _opened(state: State, body: Opened) -> State:
    prompt = UserMessage(body.prompt)
    size = (
        bytes_of(body.prompt)
        + bytes_of(body.instructions)
        + sum(bytes_of(t.schema) + bytes_of(t.description) for t in body.tools)
    )
    return replace(
        state,
        opened=body,
        tools={tool.name: tool for tool in body.tools},
        instructions=body.instructions,
        messages=state.messages.append(prompt),
        size_bytes=size,
    )


def _charge(state: State, tokens: int, nano: int | None) -> State:
    cost = None if state.cost_nano is None or nano is None else state.cost_nano + nano
    return replace(state, tokens=state.tokens + tokens, cost_nano=cost)


def _attempt_failed(state: State, body: AttemptFailed) -> State:
    charged = _charge(state, body.charged_tokens, body.charged_nano)
    attempts = state.attempts + (body.kind != RELEASED)
    return replace(charged, asked=None, failed=body, attempts=attempts)


def _replied(state: State, body: Replied) -> State:
    ids, duplicate = state.ids, False
    sent: list[ToolCall] = []
    for call in body.calls:
        duplicate = duplicate or not call.id or not call.name or ids.has(call.id)
        ids = ids.append(None, call.id or None)
        if call.sent_id != call.id:  # sent out in its place, so nobody else's either (contract 3.5)
            ids = ids.append(None, call.sent_id)
        sent.append(ToolCall(call.sent_id, call.name, call.arguments))
    if body.answer_sent_id:
        duplicate = duplicate or not body.answer_id or ids.has(body.answer_id)
        ids = ids.append(None, body.answer_id or None)
        if body.answer_sent_id != body.answer_id:
            ids = ids.append(None, body.answer_sent_id)
        sent.append(ToolCall(body.answer_sent_id, ANSWER_TOOL, body.answer_arguments))
    messages, size = state.messages, state.size_bytes
    if sent or body.text.strip():  # an empty message is never sent on
        said = AssistantMessage(body.text, tuple(sent), body.opaque)
        messages, size = messages.append(said), size + size_of(said)
    usage, cost = body.usage, state.cost_nano
    known = None if usage is None else usage.input_tokens
    return replace(
        state,
        messages=messages,
        ids=ids,
        duplicate_id=duplicate,
        steps=state.steps + 1,
        calls_before=state.calls,
        calls=state.calls + len(body.calls),
        tokens=state.tokens + body.charged_tokens,
        cost_nano=None if cost is None or body.charged_nano is None else cost + body.charged_nano,
        input_tokens=state.input_tokens if known is None else known,
        sized_bytes=state.sized_bytes if known is None else state.size_bytes,
        size_bytes=size,
        asked=None,
        failed=None,
        attempts=0,
        reply=body,
        open=tuple([CallState(call) for call in body.calls]),
    )


def _with(state: State, position: int, call: CallState) -> tuple[CallState, ...]:
    calls = state.open
    if len(calls) == 1:
        return (call,)
    return (*calls[:position], call, *calls[position + 1 :])


def _started(state: State, body: CallStarted) -> State:
    before = state.open[body.position]
    call = CallState(
        before.call,
        Phase.STARTED,
        body.start,
        asked=before.asked,
        decision=before.decision,
        decided_reason=before.decided_reason,
        consumed=before.decision == "approved",
        reconciled=before.reconciled,
        operation=body.operation,
    )
    calls = _with(state, body.position, call)
    if effect_of(state, call.call) is Effect.READ:
        return replace(state, open=calls)
    return replace(state, open=calls, writes=state.writes.append(repeat_key(call.call)))


def _ended(state: State, body: CallEnded) -> State:
    position = body.position
    before = state.open[position]
    calls = _with(state, position, replace(before, phase=Phase.ENDED, ended=body))
    done, call = state.done, before.call
    if call.digest and body.status is not CallStatus.NOT_EXECUTED:
        done = done.append(Done(body, len(state.writes)), (call.name, call.digest))
    messages, results, size = state.messages, state.results, state.size_bytes
    if len(calls) == 1 or not any(c.phase is not Phase.ENDED for c in calls):
        # In the order the model listed them, whatever the order they ended in (contract 2.3).
        for one in calls:
            ended = one.ended
            assert ended is not None, "a call in phase ENDED holds its end"
            failed = ended.status is not CallStatus.OK
            cited = (
                ""
                if failed or ended.failure or not _cites(state)
                else evidence_id(ended.step, ended.position)
            )
            said = ToolMessage(one.call.sent_id, one.call.name, ended.content, failed, cited)
            results = results.append(len(messages), (ended.step, ended.position))
            messages, size = messages.append(said), size + size_of(said)
    return replace(state, open=calls, done=done, messages=messages, results=results, size_bytes=size)


def _cites(state: State) -> bool:
    return state.opened is not None and state.opened.answer == "cited"


def _asked(state: State, body: ApprovalAsked) -> State:
    calls = list(state.open)
    for ask in body.asks:
        calls[ask.position] = replace(calls[ask.position], phase=Phase.WAITING, asked=ask, decision="")
    return replace(state, open=tuple(calls))


def _decided(state: State, body: ApprovalDecided) -> State:
    call = state.open[body.position]
    if call.phase is not Phase.WAITING:
        return state
    decided = replace(
        call, phase=Phase.ASKED, decision=body.decision, decided_reason=body.reason, consumed=False
    )
    return replace(state, open=_with(state, body.position, decided))


def _resolved(state: State, body: OutcomeResolved) -> State:
    call = state.open[body.position]
    phase = Phase.ASKED if body.verdict == "did_not_happen" else Phase.LOST
    settled = replace(
        call,
        phase=phase,
        resolved=body,
        reconciled=call.reconciled or body.source == "reconcile",
        consumed=False,
        decision="approved" if phase is Phase.ASKED and call.decision != "rejected" else call.decision,
    )
    return replace(state, open=_with(state, body.position, settled))


def _rejected(state: State, body: AnswerRejected) -> State:
    answered = ToolMessage(body.call_id, ANSWER_TOOL, body.problem, True)
    said: Message = answered if body.call_id else UserMessage(body.problem)
    tries = state.answer_tries + (body.reason == "invalid_evidence")
    return replace(
        state,
        messages=state.messages.append(said),
        size_bytes=state.size_bytes + size_of(said),
        answer_tries=tries,
        reply=None,
        open=(),
    )


def _elided(state: State, body: ContextElided) -> State:
    found = result_of(state, body.step, body.position)
    if found is None:
        return state
    index, message = found
    said = replace(message, content=body.replacement)
    smaller = without(state, size_of(message) - size_of(said))
    newest = max(state.elided_step, body.step)
    return replace(smaller, messages=state.messages.replaced(index, said), elided_step=newest)


def _model_asked(state: State, body: ModelAsked) -> State:
    return replace(state, asked=body, failed=None)


def _definition_accepted(state: State, body: DefinitionAccepted) -> State:
    tools = {tool.name: tool for tool in body.tools}
    # What the rules said of a call was about the tool it had then: without `rules` they are asked again, when
    # it starts (contract 11.3).
    calls = tuple(
        c
        if tools.get(c.call.name) == state.tools.get(c.call.name)
        else replace(c, call=replace(c.call, rules=""))
        for c in state.open
    )
    return replace(state, tools=tools, instructions=body.instructions, open=calls)


def _child_opened(state: State, body: ChildOpened) -> State:
    return state


def _child_ended(state: State, body: ChildEnded) -> State:
    return _charge(state, body.charged_tokens, body.charged_nano)


def _stopped(state: State, body: Stopped) -> State:
    settled = _charge(state, body.settled_tokens, body.settled_nano) if state.asked is not None else state
    return replace(settled, stopped=body, asked=None)


# One function for each kind of entry; a test compares the keys with the closed list (entries.KINDS).
_APPLY: dict[type, Callable[[State, Any], State]] = {
    Opened: _opened,
    ModelAsked: _model_asked,
    AttemptFailed: _attempt_failed,
    Replied: _replied,
    CallStarted: _started,
    CallEnded: _ended,
    ApprovalAsked: _asked,
    ApprovalDecided: _decided,
    OutcomeResolved: _resolved,
    AnswerRejected: _rejected,
    ContextElided: _elided,
    DefinitionAccepted: _definition_accepted,
    ChildOpened: _child_opened,
    ChildEnded: _child_ended,
    Stopped: _stopped,
}
