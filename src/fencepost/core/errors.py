"""The exceptions of Fencepost; a leaf exists only where a caller would act differently.

FencepostError
├── DefinitionInvalid        an agent, tool, limit or rule is written wrongly: fix the code or file
│   ├── LimitsInvalid
│   └── RulesInvalid
├── JsonInvalid              a text that is not strict JSON; carries the path
├── ArgumentsInvalid         arguments of one call break the tool's schema: nothing ran
├── ToolFailed               a tool's own "no", worded for the model to read
├── OutcomeUnknown           a tool's own "I cannot tell": its effect may or may not have happened
├── ModelFailed              one attempt to get a reply failed; says whether another may be made
├── TaskNotFound             no such task for this tenant
├── TaskConflict             the task is in a state that does not allow this
├── DecisionRefused          an approval or outcome decision that may not be recorded (contract 11.2)
├── Fenced                   this run no longer owns the task: stop, and write nothing
├── ApprovalExpired          an approval ran out before the start it was for was committed: ask again
├── OperationTaken           the tenant already has this operation key, done or unknown (contract 8.2)
└── StoreFailed              the store did not commit; nothing of the group was written
    ├── StoreBusy            another process held the lock for too long: try again
    ├── StoreFull            no space left: free some, nothing was lost
    ├── StoreReadOnly        the file or folder cannot be written
    ├── StoreForeign         the file is not a Fencepost store
    ├── StoreNewer           written by a newer Fencepost: upgrade
    └── StoreCorrupt         the file is damaged: restore a backup

Every class has a stable `code`; messages say what was wrong, with what, and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fencepost.core.messages import Usage


class FencepostError(Exception):
    """The root; `code` is stable and public."""

    code = "internal"


class DefinitionInvalid(FencepostError):
    """Something the programmer or operator wrote cannot be used."""

    code = "definition_invalid"


class LimitsInvalid(DefinitionInvalid):
    """A budget that is missing, zero, negative or infinite."""

    code = "limits_invalid"


class RulesInvalid(DefinitionInvalid):
    """An authorization rule that cannot be read."""

    code = "rules_invalid"


class JsonInvalid(FencepostError):
    """A text from outside that is not JSON, or that two parsers could read differently (contract 4.2).

    `path` is the place in the document (`$.window.start`), `$` when the whole text is meant.
    """

    code = "invalid_json"

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(message)
        self.path = path


class ArgumentsInvalid(FencepostError):
    """Arguments that break a tool's schema; the message is written for the model (contract 4.4)."""

    code = "invalid_arguments"


class ToolFailed(FencepostError):
    """Raise it in a tool to end the call as failed with words meant for the model."""

    code = "tool_error"


class OutcomeUnknown(FencepostError):
    """Raise it in a write tool that was stopped half-way: nobody knows whether it took effect (contract 8.3)."""

    code = "outcome_unknown"


class ModelFailed(FencepostError):
    """One attempt failed. `retriable` follows contract 5: only where nothing of the attempt can count.

    `kind` is one of "connect", "status", "incomplete", "protocol", "timeout", "overflow", "auth", "error".
    """

    code = "llm_error"

    def __init__(
        self,
        message: str,
        *,
        kind: str = "error",
        retriable: bool = False,
        status: int | None = None,
        retry_after: float | None = None,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(message)
        self.kind, self.retriable, self.status = kind, retriable, status
        self.retry_after, self.usage = retry_after, usage


class TaskNotFound(FencepostError):
    """The tenant has no task with that id; foreign and missing are the same (contract 12.2)."""

    code = "not_found"


class TaskConflict(FencepostError):
    """The task's state does not allow what was asked."""

    code = "conflict"


class DecisionRefused(FencepostError):
    """A decision that came too late, twice, from the wrong person or about something else."""

    code = "decision_refused"


class Fenced(FencepostError):
    """The task was cancelled or taken over; whoever sees this writes nothing more."""

    code = "fenced"


class ApprovalExpired(FencepostError):
    """By the store's clock the approval a commit rests on is over; nothing was written (contract 11.1)."""

    code = "approval_expired"


class OperationTaken(FencepostError):
    """An operation key of this tenant has already been used; carries how that went."""

    code = "operation_taken"

    def __init__(self, message: str, *, status: str, content: str = "") -> None:
        super().__init__(message)
        self.status, self.content = status, content


class StoreFailed(FencepostError):
    """The store could not commit; the transaction was rolled back."""

    code = "store_failed"


class StoreBusy(StoreFailed):
    """The lock of the file was held for longer than we wait."""

    code = "store_busy"


class StoreFull(StoreFailed):
    """There was no room for the commit."""

    code = "store_full"


class StoreReadOnly(StoreFailed):
    """The store cannot be written."""

    code = "store_read_only"


class StoreForeign(StoreFailed):
    """The file belongs to another application."""

    code = "store_foreign"


class StoreNewer(StoreFailed):
    """The file's schema is newer than this program."""

    code = "store_newer"


class StoreCorrupt(StoreFailed):
    """The file is damaged."""

    code = "store_corrupt"
