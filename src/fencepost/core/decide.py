"""`decide` says what happens next. Guard clauses in order of precedence (contract 3.6); read it top to bottom.

Rule 1: pure. Same state, same task seconds, same move; no clock, no ids, no I/O.
Rule 2: a move is an effect to perform, people to ask, facts to record, or rest; it never says how.
Rule 3: whatever stops a task goes through `Stop`, so that one routine closes what is open (closing.py).
"""

from __future__ import annotations

from msgspec import Struct

from fencepost.core.closing import confirmed
from fencepost.core.eliding import elisions
from fencepost.core.entries import (
    Answer,
    AnswerRejected,
    AttemptFailed,
    CallEnded,
    CallStatus,
    EntryBody,
    Replied,
    Verdict,
)
from fencepost.core.evidence import problems_of
from fencepost.core.lifecycle import StopReason
from fencepost.core.limits import Limits
from fencepost.core.messages import Effect, Finish, ToolDefinition
from fencepost.core.recovery import OnUnknown, Reaction, Recovery
from fencepost.core.state import (
    CallState,
    Phase,
    State,
    definition_of,
    effect_of,
    prompt_tokens,
    repeat_key,
)


class AskModel(Struct, frozen=True, gc=False):
    """Reserve and ask for a reply; wait `delay` seconds first. Tokens, nano-units of money."""

    step: int
    attempt: int
    reserved_tokens: int
    reserved_nano: int | None
    max_output_tokens: int
    delay: float = 0.0


class StartCalls(Struct, frozen=True, gc=False):
    """Start these calls; more than one only when all are parallel."""

    positions: tuple[int, ...]


class AwaitCalls(Struct, frozen=True, gc=False):
    """Calls are in flight and nothing else may start: wait for one to end."""


class AskPeople(Struct, frozen=True, gc=False):
    """Ask about these calls ("approval" or "outcome") in one commit, which gives the lease back."""

    positions: tuple[int, ...]
    about: str


class Reconcile(Struct, frozen=True, gc=False):
    """Ask a write tool itself what became of its lost start."""

    position: int


class Record(Struct, frozen=True, gc=False):
    """Facts that follow from the state alone."""

    bodies: tuple[EntryBody, ...]


class Stop(Struct, frozen=True, gc=False):
    """End the task."""

    reason: StopReason
    detail: str = ""
    answer: Answer | None = None
    partial: bool = False


class Rest(Struct, frozen=True, gc=False):
    """Nothing to do: the task is "over", or "waits" for people."""

    why: str


Move = AskModel | StartCalls | AwaitCalls | AskPeople | Reconcile | Record | Stop | Rest

OVER, WAITS, AWAIT = Rest("over"), Rest("waits"), AwaitCalls()


def decide(state: State, seconds: float) -> Move:
    """The next move of a task that has used so many seconds."""
    opened = state.opened
    assert opened is not None, "a journal begins with Opened"
    if state.stopped is not None:
        return OVER
    for call in state.open:
        if call.phase is Phase.WAITING:
            return WAITS
    if seconds >= opened.limits.task_seconds:
        return _out_of_time(state, opened.limits, opened.recovery)
    if state.asked is not None:  # an earlier run asked and never heard
        asked = state.asked
        charged = AttemptFailed(
            asked.step,
            asked.attempt,
            "crash",
            "the run that asked ended before a reply was recorded",
            retry_in=0.0,
            charged_tokens=asked.reserved_tokens,
            charged_nano=asked.reserved_nano,
        )
        return Record((charged,))
    if state.failed is not None:
        return _after_failure(state, state.failed, opened.limits)
    if state.reply is None:
        return _ask(state, opened.limits)
    return _follow(state, state.reply, opened.limits, opened.recovery)


def _out_of_time(state: State, limits: Limits, recovery: Recovery) -> Stop:
    """The end at the deadline; an answer that arrived just then is kept."""
    reply, answer = state.reply, None
    if reply is not None and _unfit(state, reply, limits, recovery) is None:
        answer = _kept(state, reply)
    detail = f"the task may take {limits.task_seconds:g} seconds"
    return Stop(StopReason.TASK_TIMEOUT, detail, answer=answer, partial=answer is not None)


def _after_failure(state: State, failed: AttemptFailed, limits: Limits) -> Move:
    if failed.retry_in is not None and state.attempts < limits.attempts_per_step:
        return _ask(state, limits, failed.retry_in)
    reason = {"timeout": StopReason.LLM_TIMEOUT, "overflow": StopReason.CONTEXT_OVERFLOW}.get(
        failed.kind, StopReason.LLM_ERROR
    )
    return Stop(reason, f"step {failed.step}, attempt {failed.attempt}: {failed.kind}")


def _ask(state: State, limits: Limits, delay: float = 0.0) -> Move:
    profile = state.profile
    assert profile is not None, "a run names its model before it decides"
    if state.steps >= limits.steps:
        return Stop(StopReason.MAX_STEPS_EXHAUSTED, f"{limits.steps} steps were used")
    if limits.cost_nano is not None and (state.cost_nano is None or profile.cost(0, 0) is None):
        return Stop(
            StopReason.UNKNOWN_PRICE, f"the price of {profile.name} is not known and a cost limit is set"
        )
    prompt, context = prompt_tokens(state), profile.context_tokens
    fits = prompt if context is None else context - profile.max_output_tokens
    if prompt > fits and (elided := elisions(state, fits)):
        return Record(elided)
    left = limits.tokens - state.tokens - prompt
    if left <= 0:
        return Stop(
            StopReason.TOKEN_BUDGET_EXCEEDED,
            f"{state.tokens} of {limits.tokens} tokens used, {prompt} needed",
        )
    output = min(profile.max_output_tokens, left)
    nano = profile.cost(prompt, output)
    if limits.cost_nano is not None and nano is not None and (state.cost_nano or 0) + nano > limits.cost_nano:
        return Stop(
            StopReason.COST_BUDGET_EXCEEDED, f"{state.cost_nano} of {limits.cost_nano} nano-units used"
        )
    if prompt > fits:
        detail = f"{prompt} tokens to send and {profile.max_output_tokens} to receive, {profile.name} takes {context}"
        return Stop(StopReason.CONTEXT_OVERFLOW, detail)
    attempt = 1 if state.failed is None else state.failed.attempt + 1
    return AskModel(state.steps + 1, attempt, prompt + output, nano, output, delay)


def _follow(state: State, reply: Replied, limits: Limits, recovery: Recovery) -> Move:
    """What an accepted reply leads to."""
    ended = flying = lost = 0
    fresh, allowed = True, state.calls <= limits.tool_calls
    for call in state.open:
        phase = call.phase
        if phase is Phase.ENDED:
            ended += 1
        elif phase is Phase.STARTED:
            flying += 1
        elif phase is Phase.LOST:
            lost += 1
        if phase is not Phase.ASKED or call.starts or call.decision:
            fresh = False
        if call.call.verdict is not Verdict.ALLOW:  # denied, refused, or to be asked about
            allowed = False
    if ended and ended == len(state.open):
        return _after_calls(state, limits, recovery)
    if fresh and (move := _before_any_call(state, reply, limits, recovery, allowed=allowed)) is not None:
        return move
    if not flying:
        if lost and (move := _about_lost(state, reply, recovery)) is not None:
            return move
        if ended and (stop := _failure_that_stops(state, recovery)) is not None:
            return stop
        if closed := _without_running(state, reply, limits):
            return Record(closed)
        if asks := _to_ask(state):
            return AskPeople(asks, "approval")
    return _start(state, limits, recovery, flying=flying)


def _before_any_call(
    state: State, reply: Replied, limits: Limits, recovery: Recovery, *, allowed: bool
) -> Move | None:
    """What a reply of which nothing has happened yet leads to, unless its calls may be looked at one by one."""
    if (unfit := _unfit(state, reply, limits, recovery)) is not None:
        return unfit
    if (spent := _over_budget(state, reply, limits)) is not None:
        return spent
    if reply.answer is not None or reply.answer_problem:
        return _cited(state, reply, limits, recovery)
    if not reply.calls:
        return _plain(state, reply)
    if allowed:  # the usual reply: nothing of it is to be closed or asked about first
        return _start(state, limits, recovery, flying=0)
    return _refused_outright(state, limits, recovery)


def _unfit(state: State, reply: Replied, limits: Limits, recovery: Recovery) -> Move | None:
    """Why no call of a reply may run and no answer in it count, if there is a reason (contract 3.2 to 3.4)."""
    if reply.finish in (Finish.REFUSAL, Finish.FILTER):
        return _reject(
            reply, recovery.refused, StopReason.REFUSED, "refused", "the provider refused this reply"
        )
    if reply.finish is Finish.LENGTH:
        return _reject(
            reply, recovery.truncated, StopReason.TRUNCATED_REPLY, "truncated", "the reply was cut off"
        )
    invalid = _invalid(state, reply, limits, recovery)
    if invalid:
        return _reject(reply, recovery.invalid_reply, StopReason.INVALID_DECISION, "invalid_reply", invalid)
    if state.duplicate_id:
        why = "duplicate_call_id: every call needs an id that is not empty and new in this task"
        return _reject(
            reply, recovery.duplicate_call_id, StopReason.DUPLICATE_CALL_ID, "duplicate_call_id", why
        )
    return None


def _invalid(state: State, reply: Replied, limits: Limits, recovery: Recovery) -> str:
    finish, calls = reply.finish, reply.calls
    if finish is not Finish.TOOL_CALLS and finish is not Finish.STOP:  # the allow-list of contract 3.2
        return f"the reply ended with finish {finish.value!r}, which allows nothing in it"
    answers = reply.answer is not None or bool(reply.answer_problem)
    if not calls and not answers and not reply.text.strip():
        return "the reply holds neither calls nor an answer"
    if len(calls) > limits.calls_per_reply:
        return f"{len(calls)} calls in one reply, at most {limits.calls_per_reply} are taken"
    if recovery.one_call_per_reply and len(calls) + answers > 1:
        return "more than one call in a reply"
    if recovery.one_call_per_reply and calls and reply.text.strip():
        return "a reply is either a call or an answer, this was both"
    return ""


def _reject(reply: Replied, reaction: Reaction, reason: StopReason, failure: str, why: str) -> Move:
    if reaction is Reaction.STOP:
        return Stop(reason, why)
    if not reply.calls and not reply.answer_sent_id:
        return Record((AnswerRejected(reply.step, failure, f"Your last reply could not be used: {why}."),))
    closed = _unrun(reply, failure, f"not executed: {why}")
    if reply.answer_sent_id:
        return Record(
            (*closed, AnswerRejected(reply.step, failure, f"not taken: {why}", reply.answer_sent_id))
        )
    return Record(closed)


def _unrun(reply: Replied, failure: str, said: str) -> tuple[EntryBody, ...]:
    return tuple(
        CallEnded(reply.step, i, CallStatus.NOT_EXECUTED, said, failure=failure)
        for i in range(len(reply.calls))
    )


def _over_budget(state: State, reply: Replied, limits: Limits) -> Stop | None:
    """A reply that crosses a limit is kept and its calls are closed unrun (contract 6.6)."""
    if state.tokens > limits.tokens:
        reason, detail = StopReason.TOKEN_BUDGET_EXCEEDED, f"{state.tokens} of {limits.tokens} tokens used"
    elif limits.cost_nano is not None and (state.cost_nano is None or state.cost_nano > limits.cost_nano):
        reason, detail = (
            StopReason.COST_BUDGET_EXCEEDED,
            f"{state.cost_nano} of {limits.cost_nano} nano-units used",
        )
    else:
        return None
    answer = _kept(state, reply)
    return Stop(reason, detail, answer=answer, partial=answer is not None)


def _kept(state: State, reply: Replied) -> Answer | None:
    """The valid answer in a reply that crossed a limit, if there is one (contract 6.2)."""
    if reply.answer is not None:
        return None if problems_of(reply.answer, state) else reply.answer
    if reply.calls or reply.answer_problem or not _takes_text(state):
        return None
    return Answer(reply.text)


def _takes_text(state: State) -> bool:
    return state.opened is not None and state.opened.answer == "text"


def _plain(state: State, reply: Replied) -> Move:
    """A reply without calls is the answer where text is asked for."""
    if _takes_text(state):
        return Stop(StopReason.COMPLETED, answer=Answer(reply.text))
    raise AssertionError(
        "admission turns text into an answer or an answer problem where citations are asked for"
    )


def _cited(state: State, reply: Replied, limits: Limits, recovery: Recovery) -> Move:
    problem = reply.answer_problem
    if reply.answer is not None:
        problem = "; ".join(problems_of(reply.answer, state))
    if not problem and reply.answer is not None:
        return Stop(StopReason.COMPLETED, answer=reply.answer)
    if recovery.invalid_evidence is Reaction.STOP or state.answer_tries + 1 >= limits.answer_tries:
        return Stop(StopReason.INVALID_EVIDENCE, problem)
    said = f"The answer was not taken: {problem}."
    closed = _unrun(reply, "answer_in_reply", "not executed: an answer came in the same reply")
    return Record((*closed, AnswerRejected(reply.step, "invalid_evidence", said, reply.answer_sent_id)))


def _refused_outright(state: State, limits: Limits, recovery: Recovery) -> Stop | None:
    """The first call, in order, that stops the task by policy before anything of the reply ran."""
    allowed = limits.tool_calls - state.calls_before
    harmless = True  # nothing before the call in this reply can change what the call would bring
    for position, call in enumerate(state.open):
        if position >= allowed:
            break
        refusal = call.call.refusal
        if refusal is None:
            if call.call.verdict is Verdict.DENY and recovery.denied is Reaction.STOP:
                return Stop(StopReason.TOOL_DENIED, call.call.reason or f"{call.call.name} is denied")
            # What asks or is denied is looked at here: nobody is asked about a call that will not run.
            early = harmless and call.call.verdict is not Verdict.ALLOW
            if early and _is_repeated(state, call, definition_of(state, call.call), recovery):
                return _repeated(call)
            harmless = harmless and effect_of(state, call.call) is Effect.READ
        elif refusal.kind == "unknown_tool":
            if recovery.unknown_tool is Reaction.STOP:
                return Stop(StopReason.TOOL_DENIED, refusal.message)
        elif recovery.invalid_arguments is Reaction.STOP:
            return Stop(StopReason.INVALID_ARGUMENTS, refusal.message)
    return None


def _about_lost(state: State, reply: Replied, recovery: Recovery) -> Move | None:
    """What to do first about starts whose end nobody heard (contract 8.3)."""
    waits: list[int] = []
    for position, call in enumerate(state.open):
        if call.phase is not Phase.LOST:
            continue
        resolved = call.resolved
        if resolved is not None and resolved.verdict == "happened":
            return Record((confirmed(reply.step, position, resolved),))
        if effect_of(state, call.call) is not Effect.WRITE:
            continue  # it runs again with the same key
        definition = definition_of(state, call.call)
        if resolved is None and definition is not None and definition.reconciles and not call.reconciled:
            return Reconcile(position)
        given_up = resolved is not None and resolved.source == "person"
        if recovery.unknown_outcome is OnUnknown.STOP:
            return Stop(
                StopReason.TOOL_OUTCOME_UNKNOWN, f"{call.call.name}: {call.cause or 'no end was heard'}"
            )
        if given_up or recovery.unknown_outcome is OnUnknown.TELL_MODEL:
            said = "outcome unknown, do not repeat"
            return Record(
                (CallEnded(reply.step, position, CallStatus.UNKNOWN, said, failure="outcome_unknown"),)
            )
        waits.append(position)
    return AskPeople(tuple(waits), "outcome") if waits else None


# The failures that recovery has a word on: its field and the stop, by what the result says failed, else its status.
_STOPPING: dict[str, tuple[str, StopReason]] = {
    "unknown_tool": ("unknown_tool", StopReason.TOOL_DENIED),
    "invalid_arguments": ("invalid_arguments", StopReason.INVALID_ARGUMENTS),
    CallStatus.FAILED.value: ("tool_error", StopReason.TOOL_ERROR),
    CallStatus.TIMEOUT.value: ("tool_timeout", StopReason.TOOL_TIMEOUT),
    CallStatus.DENIED.value: ("denied", StopReason.TOOL_DENIED),
}


def _failure_that_stops(state: State, recovery: Recovery) -> Stop | None:
    """The first ended call, in order, whose failure ends the task by policy."""
    for call in state.open:
        ended = call.ended
        if ended is None or ended.status is CallStatus.OK:
            continue
        found = _STOPPING.get(ended.failure) or _STOPPING.get(ended.status.value)
        if found is not None and getattr(recovery, found[0]) is Reaction.STOP:
            return Stop(found[1], f"{call.call.name}: {ended.failure or ended.status.value}")
    return None


def _without_running(state: State, reply: Replied, limits: Limits) -> tuple[EntryBody, ...]:
    """Results of the calls that will not run, whatever the others bring."""
    allowed = limits.tool_calls - state.calls_before
    closed: list[EntryBody] = []
    for position, call in enumerate(state.open):
        if call.phase is not Phase.ASKED:
            continue
        refusal, verdict = call.call.refusal, call.call.verdict
        if position >= allowed:
            said = f"budget: the task may make {limits.tool_calls} tool calls"
            closed.append(CallEnded(reply.step, position, CallStatus.NOT_EXECUTED, said, failure="budget"))
        elif refusal is not None:
            closed.append(
                CallEnded(reply.step, position, CallStatus.FAILED, refusal.message, failure=refusal.kind)
            )
        elif verdict is Verdict.DENY:
            said = f"denied: {call.call.reason or 'the rules do not allow this call'}"
            closed.append(CallEnded(reply.step, position, CallStatus.DENIED, said, failure="denied"))
        elif call.decision in _CLOSED_DECISIONS:
            said = f"{call.decision}: {call.decided_reason or 'nobody allowed this call'}"
            closed.append(CallEnded(reply.step, position, CallStatus.DENIED, said, failure=call.decision))
    return tuple(closed)


_CLOSED_DECISIONS = ("rejected", "expired")


def _to_ask(state: State) -> tuple[int, ...]:
    """The calls a person must allow first."""
    asks: tuple[int, ...] = ()
    for position, call in enumerate(state.open):
        if call.call.verdict is Verdict.ASK and call.phase is Phase.ASKED and call.decision != "approved":
            asks = (*asks, position)
    return asks


def _start(state: State, limits: Limits, recovery: Recovery, *, flying: int) -> Move:
    """Start what may start now: one call, or adjacent parallel ones up to the cap (contract 2.5)."""
    room = limits.parallel_calls - flying
    starts: list[int] = []
    failing = flying > 0 and _failure_that_stops(state, recovery) is not None
    for position, call in enumerate(state.open):
        phase = call.phase
        if phase is Phase.ENDED:
            continue
        definition = definition_of(state, call.call)
        parallel = definition is not None and definition.parallel
        if phase is Phase.STARTED:
            if not parallel:
                return AWAIT
            continue
        lost_write = phase is Phase.LOST and effect_of(state, call.call) is Effect.WRITE
        if failing or lost_write or len(starts) >= room or (not parallel and (flying or starts)):
            break
        if _is_repeated(state, call, definition, recovery):
            if flying or starts:
                break
            return _repeated(call)
        starts.append(position)
        if not parallel:
            break
    return StartCalls(tuple(starts)) if starts else AWAIT


def _repeated(call: CallState) -> Stop:
    return Stop(StopReason.REPEATED_TOOL_CALL, f"{call.call.name}: the same call, the same result")


def _is_repeated(
    state: State, call: CallState, definition: ToolDefinition | None, recovery: Recovery
) -> bool:
    """Whether this call was made before with equal results and no started non-read call of another kind since."""
    if call.starts or (definition is not None and definition.repeat == "ok"):
        return False
    key = repeat_key(call.call)
    at = state.done.positions(key)
    wanted = recovery.repeats - 1
    if not 0 < wanted <= len(at):
        return False
    earlier = [state.done[i] for i in at[-wanted:]]
    if any(_result(done.ended) != _result(earlier[0].ended) for done in earlier):
        return False
    return all(write == key for write in state.writes[earlier[0].writes_before :])


def _result(ended: CallEnded) -> tuple[CallStatus, str]:
    """What a call brought, for telling whether two calls brought the same; only a tool's value has a digest."""
    return ended.status, ended.digest or ended.content


def _after_calls(state: State, limits: Limits, recovery: Recovery) -> Move:
    """The step is closed: a stop that its results call for, or the next step."""
    if (stop := _failure_that_stops(state, recovery)) is not None:
        return stop
    for call in state.open:
        if call.ended is not None and call.ended.failure == "budget":
            return Stop(StopReason.MAX_TOOL_CALLS_EXHAUSTED, f"{limits.tool_calls} tool calls were used")
    return _ask(state, limits)
