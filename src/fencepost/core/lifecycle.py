"""The states of a task and the only ways between them (contract 9).

Rule 1: this table is the whole truth; a store checks every commit against it inside its transaction.
Rule 2: a terminal state has no way out.
"""

from __future__ import annotations

import enum


class TaskState(enum.StrEnum):
    """Where a task is; the store keeps it beside the journal so that it can be queried."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    WAITING_APPROVAL = "WAITING_APPROVAL"
    READY_TO_RESUME = "READY_TO_RESUME"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class StopReason(enum.StrEnum):
    """Why a task ended: a closed list, public and stable."""

    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    MAX_STEPS_EXHAUSTED = "MAX_STEPS_EXHAUSTED"
    MAX_TOOL_CALLS_EXHAUSTED = "MAX_TOOL_CALLS_EXHAUSTED"
    TOKEN_BUDGET_EXCEEDED = "TOKEN_BUDGET_EXCEEDED"  # noqa: S105 - a stop reason, not a password
    COST_BUDGET_EXCEEDED = "COST_BUDGET_EXCEEDED"
    UNKNOWN_PRICE = "UNKNOWN_PRICE"
    TASK_TIMEOUT = "TASK_TIMEOUT"
    LLM_TIMEOUT = "LLM_TIMEOUT"
    TOOL_TIMEOUT = "TOOL_TIMEOUT"
    LLM_ERROR = "LLM_ERROR"
    CONTEXT_OVERFLOW = "CONTEXT_OVERFLOW"
    INVALID_DECISION = "INVALID_DECISION"
    TRUNCATED_REPLY = "TRUNCATED_REPLY"
    REFUSED = "REFUSED"
    DUPLICATE_CALL_ID = "DUPLICATE_CALL_ID"
    REPEATED_TOOL_CALL = "REPEATED_TOOL_CALL"
    INVALID_ARGUMENTS = "INVALID_ARGUMENTS"
    TOOL_ERROR = "TOOL_ERROR"
    TOOL_DENIED = "TOOL_DENIED"
    TOOL_OUTCOME_UNKNOWN = "TOOL_OUTCOME_UNKNOWN"
    INVALID_EVIDENCE = "INVALID_EVIDENCE"
    ANSWER_NOT_ACCEPTED = "ANSWER_NOT_ACCEPTED"
    DEFINITION_CHANGED = "DEFINITION_CHANGED"
    TOO_MANY_ATTEMPTS = "TOO_MANY_ATTEMPTS"
    INTERNAL_ERROR = "INTERNAL_ERROR"


TERMINAL = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED})
OPEN = frozenset(TaskState) - TERMINAL

_NO_SUCCESS = frozenset({TaskState.FAILED, TaskState.CANCELLED})  # success needs a run (contract 9)
TRANSITIONS: dict[TaskState, frozenset[TaskState]] = {
    TaskState.PENDING: frozenset({TaskState.PENDING, TaskState.RUNNING}) | _NO_SUCCESS,
    TaskState.RUNNING: frozenset({TaskState.RUNNING, TaskState.WAITING_APPROVAL, TaskState.READY_TO_RESUME})
    | TERMINAL,
    TaskState.WAITING_APPROVAL: frozenset({TaskState.WAITING_APPROVAL, TaskState.READY_TO_RESUME})
    | _NO_SUCCESS,
    TaskState.READY_TO_RESUME: frozenset({TaskState.RUNNING, TaskState.READY_TO_RESUME}) | _NO_SUCCESS,
    TaskState.SUCCEEDED: frozenset(),
    TaskState.FAILED: frozenset(),
    TaskState.CANCELLED: frozenset(),
}


def state_after(reason: StopReason) -> TaskState:
    """The terminal state a stop reason leads to."""
    if reason is StopReason.COMPLETED:
        return TaskState.SUCCEEDED
    if reason is StopReason.CANCELLED:
        return TaskState.CANCELLED
    return TaskState.FAILED


def allows(before: TaskState, after: TaskState) -> bool:
    """Whether a commit may take a task from one state to the other."""
    return after in TRANSITIONS[before]
