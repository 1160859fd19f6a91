"""The exit codes: one table, public and stable; docs/cli.md shows the same, and a test compares them."""

from __future__ import annotations

import enum

from fencepost.core import errors
from fencepost.core.lifecycle import TaskState


class Exit(enum.IntEnum):
    """How the program ends; the comment beside each is its meaning in docs/cli.md."""

    OK = 0  # done; for `run`, `resume`, `demo` and `watch`: the task succeeded
    FAILED = 1  # the task ended FAILED; for `conformance`, `chaos`: a rule is broken; for `replay`: something differs
    USAGE = 2  # a command, option, agent, file or setting is wrong; nothing was started
    WAITING = 3  # the task waits for a person
    CANCELLED = 4  # the task was cancelled
    NOT_FOUND = 5  # no such task, or the short id fits several
    CONFLICT = 6  # another worker holds the task, or its state does not allow this
    STORE = 7  # the store cannot be used, or a part of it cannot be read; for `doctor`: something is wrong
    REFUSED = 8  # the decision was refused, and the refusal recorded
    UNFINISHED = 9  # the task was given back and can be resumed
    INTERNAL = 70  # a defect in Fencepost
    OUTPUT = 74  # the output cannot be written; what was done stays done
    HANGUP = 129  # the terminal went away; the task was given back
    INTERRUPTED = 130  # Ctrl-C: the second one during a run, the first one elsewhere
    TERMINATED = 143  # SIGTERM; the task was given back


def exit_of_state(state: TaskState) -> Exit:
    """The code for a task that was left in this state."""
    match state:
        case TaskState.SUCCEEDED:
            return Exit.OK
        case TaskState.FAILED:
            return Exit.FAILED
        case TaskState.CANCELLED:
            return Exit.CANCELLED
        case TaskState.WAITING_APPROVAL:
            return Exit.WAITING
        case TaskState.RUNNING:
            return Exit.CONFLICT
        case TaskState.PENDING | TaskState.READY_TO_RESUME:
            return Exit.UNFINISHED


def exit_of_error(error: BaseException) -> Exit:
    """The code for a command that an error ended."""
    match error:
        case errors.DefinitionInvalid() | errors.JsonInvalid():
            return Exit.USAGE
        case errors.TaskNotFound():
            return Exit.NOT_FOUND
        case errors.TaskConflict() | errors.Fenced():
            return Exit.CONFLICT
        case errors.StoreFailed():
            return Exit.STORE
        case errors.DecisionRefused():
            return Exit.REFUSED
        case KeyboardInterrupt():
            return Exit.INTERRUPTED
        case OSError():
            return Exit.OUTPUT
        case _:
            return Exit.INTERNAL
