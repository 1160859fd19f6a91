"""The two recovery policies, written out again from the contract's table."""

from __future__ import annotations

from msgspec.structs import asdict

from fencepost.core.recovery import OnUnknown, Reaction, Recovery

TELL, STOP = Reaction.TELL_MODEL, Reaction.STOP
COLUMNS = {
    "unknown_tool": (TELL, STOP),
    "invalid_arguments": (TELL, STOP),
    "tool_error": (TELL, STOP),
    "tool_timeout": (TELL, STOP),
    "denied": (TELL, STOP),
    "invalid_evidence": (TELL, STOP),
    "duplicate_call_id": (STOP, STOP),
    "truncated": (STOP, STOP),
    "refused": (STOP, STOP),
    "invalid_reply": (STOP, STOP),
    "unknown_outcome": (OnUnknown.WAIT, OnUnknown.STOP),
    "repeats": (3, 2),
    "one_call_per_reply": (False, True),
}


def test_default_and_strict_recovery_react_as_the_table_says() -> None:
    assert asdict(Recovery.default()) == {name: column[0] for name, column in COLUMNS.items()}
    assert asdict(Recovery.strict()) == {name: column[1] for name, column in COLUMNS.items()}


def test_the_policy_of_a_plain_recovery_is_the_default() -> None:
    assert Recovery() == Recovery.default()
