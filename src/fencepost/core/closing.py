"""The one routine that ends a task (contract 7.1): cancel, timeouts, limits, the reaper, operators all use it.

It closes every open call with exactly one result, voids open questions, settles what was reserved and adds
the terminal entry. What it says of a call depends only on what is known: not started, started and repeatable, a
started write whose outcome nobody knows, or one of which somebody has said that it happened.
"""

from __future__ import annotations

from fencepost.core.entries import (
    Answer,
    ApprovalDecided,
    CallEnded,
    CallStatus,
    EntryBody,
    OutcomeResolved,
    Stopped,
)
from fencepost.core.lifecycle import StopReason
from fencepost.core.messages import Effect
from fencepost.core.state import CallState, Phase, State, effect_of

# How each reason is said to the model of a later task that inherits this transcript.
NOT_EXECUTED = {
    StopReason.CANCELLED: "cancelled",
    StopReason.TRUNCATED_REPLY: "not executed: truncated",
    StopReason.REFUSED: "not executed: the reply was refused or filtered",
    StopReason.DUPLICATE_CALL_ID: "not executed: duplicate_call_id",
    StopReason.REPEATED_TOOL_CALL: "not executed: the same call with an equal result was made before",
    StopReason.TASK_TIMEOUT: "not executed: the task ran out of time",
    StopReason.COMPLETED: "not executed: the answer came in the same reply",
}


def closing(
    state: State,
    reason: StopReason,
    *,
    detail: str = "",
    answer: Answer | None = None,
    partial: bool = False,
    by: str = "",
) -> tuple[EntryBody, ...]:
    """Every entry that is still missing before a task is over, the terminal one last."""
    bodies: list[EntryBody] = []
    for position, call in enumerate(state.open):
        if call.phase is Phase.ENDED or state.reply is None:
            continue
        if call.phase is Phase.WAITING and call.asked is not None:
            bodies.append(
                ApprovalDecided(state.reply.step, position, "void", call.asked.digest, reason.value)
            )
        bodies.append(_result(state, call, position, reason))
    asked = state.asked
    bodies.append(
        Stopped(
            reason,
            detail=detail,
            answer=answer,
            partial=partial,
            settled_tokens=0 if asked is None else asked.reserved_tokens,
            settled_nano=0 if asked is None else asked.reserved_nano,
            by=by,
        )
    )
    return tuple(bodies)


def confirmed(step: int, position: int, resolved: OutcomeResolved) -> CallEnded:
    """The result of a lost call of which somebody has said that it happened."""
    # A person's word is no result of the tool, so it may not be cited (contract 1, evidence).
    failure = "" if resolved.source == "reconcile" else "confirmed_by_person"
    return CallEnded(
        step,
        position,
        CallStatus.OK,
        resolved.content,
        failure=failure,
        json=resolved.json,
        digest=resolved.digest,
        size_bytes=len(resolved.content.encode()),
    )


def _happened(call: CallState) -> bool:
    return call.resolved is not None and call.resolved.verdict == "happened"


def _result(state: State, call: CallState, position: int, reason: StopReason) -> CallEnded:
    step = state.reply.step if state.reply is not None else 0
    if call.resolved is not None and _happened(call):
        return confirmed(step, position, call.resolved)
    started = call.phase in (Phase.STARTED, Phase.LOST) or (call.phase is Phase.WAITING and call.starts > 0)
    if not started:
        said = NOT_EXECUTED.get(reason, f"not executed: the task stopped with {reason.value}")
        status = CallStatus.CANCELLED if reason is StopReason.CANCELLED else CallStatus.NOT_EXECUTED
        return CallEnded(step, position, status, said, failure=reason.value)
    if effect_of(state, call.call) is Effect.WRITE:
        said = (
            "cancelled, outcome unknown"
            if reason is StopReason.CANCELLED
            else "outcome unknown, do not repeat"
        )
        return CallEnded(step, position, CallStatus.UNKNOWN, said, failure=reason.value)
    status = CallStatus.CANCELLED if reason is StopReason.CANCELLED else CallStatus.TIMEOUT
    said = (
        "cancelled"
        if reason is StopReason.CANCELLED
        else f"did not end before the task stopped: {reason.value}"
    )
    return CallEnded(step, position, status, said, failure=reason.value)


_UNHEARD = (Phase.STARTED, Phase.LOST, Phase.WAITING)


def lost_operations(state: State) -> tuple[tuple[str, str, str], ...]:
    """The tenant-wide operations that nobody knows the outcome of when the task closes now."""
    return tuple(
        (call.operation, "unknown", "")
        for call in state.open
        if call.operation and call.phase in _UNHEARD and call.starts > 0 and not _happened(call)
    )
