"""The suite for tools tells good tools from bad ones (contract 4, 6.7, 8)."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from fencepost import tool
from fencepost.ports import CallContext
from fencepost.testing.conformance import TOOL_RULES, Report, Verdict, check_tool

# The suite waits in real time for what must not happen; these waits are as short as a busy machine allows.
QUICK: dict[str, Any] = {
    "run_seconds": 5.0, "deadline_seconds": 0.05, "grace_seconds": 0.2, "settle_seconds": 0.05,
}  # fmt: skip
EVERY_RULE = tuple(TOOL_RULES)


class World:
    """Where effects happen, at most one a key."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def probe(self) -> int:
        return len(self.keys)


@tool(effect="read")
async def stock(item: Annotated[str, Meta(min_length=1)], depth: int = 0) -> dict[str, Any]:
    """How many of an item are in store."""
    return {"item": item, "count": 3}


async def test_a_plain_read_keeps_every_rule_that_can_be_checked() -> None:
    report = await check_tool(stock, **QUICK)
    report.check()
    assert tuple(found.rule for found in report.findings) == EVERY_RULE
    assert report.verdict("strict-arguments") is Verdict.HOLDS
    assert report.verdict("leaves-nothing") is Verdict.HOLDS


async def test_an_order_that_keeps_its_key_holds_the_key_rule() -> None:
    world = World()

    @tool
    async def order(item: str, context: CallContext) -> str:
        """Order one."""
        if context.key not in world.keys:
            world.keys.append(context.key)
        return "ordered"

    report: Report = await check_tool(order, arguments={"item": "a"}, probe=world.probe, **QUICK)
    report.check()
    assert report.verdict("key") is Verdict.HOLDS
