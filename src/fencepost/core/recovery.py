"""What happens after each kind of failure: told to the model, or the end of the task (contract 5).

Recovery is fixed in entry 1; it never changes while a task runs.
"""

from __future__ import annotations

import enum

from msgspec import Struct


class Reaction(enum.StrEnum):
    """The two reactions to a failure; there is no third."""

    TELL_MODEL = "tell_model"
    STOP = "stop"


class OnUnknown(enum.StrEnum):
    """What to do about a write whose outcome nobody knows (contract 8.3)."""

    WAIT = "wait"
    TELL_MODEL = "tell_model"
    STOP = "stop"


TELL, STOP = Reaction.TELL_MODEL, Reaction.STOP


class Recovery(Struct, frozen=True, omit_defaults=True, gc=False):
    """One reaction for each failure kind; use `Recovery.default()` or `Recovery.strict()` and change fields.

    `repeats` is the number of equal calls with equal results at which the task stops, that call not executed.
    `one_call_per_reply` makes several calls, or calls beside an answer text, an INVALID_DECISION.
    """

    unknown_tool: Reaction = TELL
    invalid_arguments: Reaction = TELL
    tool_error: Reaction = TELL
    tool_timeout: Reaction = TELL
    denied: Reaction = TELL
    invalid_evidence: Reaction = TELL
    duplicate_call_id: Reaction = STOP
    truncated: Reaction = STOP
    refused: Reaction = STOP
    invalid_reply: Reaction = STOP
    unknown_outcome: OnUnknown = OnUnknown.WAIT
    repeats: int = 3
    one_call_per_reply: bool = False

    @classmethod
    def default(cls) -> Recovery:
        """Failures a model can correct are told to it; the rest stop the task."""
        return cls()

    @classmethod
    def strict(cls) -> Recovery:
        """The first failure of any kind stops the task with its name."""
        return cls(
            unknown_tool=STOP,
            invalid_arguments=STOP,
            tool_error=STOP,
            tool_timeout=STOP,
            denied=STOP,
            invalid_evidence=STOP,
            unknown_outcome=OnUnknown.STOP,
            repeats=2,
            one_call_per_reply=True,
        )
