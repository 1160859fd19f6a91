"""Tools and models that the tests check as `subjects_for_tests.py:NAME`, with the world they act on."""

from __future__ import annotations

from fencepost import CallContext, ScriptedModel, tool
from fencepost.testing import call, calls, say

KEYS: list[str] = []


def happened() -> int:
    """How many effects there were."""
    return len(KEYS)


@tool(effect="read")
async def look(place: str) -> str:
    """What is there."""
    return f"nothing at {place}"


@tool
async def keeps_its_key(item: str, context: CallContext) -> str:
    """Order one."""
    if context.key not in KEYS:
        KEYS.append(context.key)
    return "ordered"


@tool
async def forgets_its_key(item: str, context: CallContext) -> str:
    """Order one, or two."""
    KEYS.append(context.key)
    return "ordered"


NUMBER = 3
model = ScriptedModel([calls(call("echo", text="ready"))] * 4)


def silent() -> ScriptedModel:
    """A model that says nothing."""
    return ScriptedModel([say(" ")] * 9)
