"""The suites that a tool and a model of somebody else's have to pass: `check_tool` and `check_model`.

    async def test_my_tool_keeps_the_rules() -> None:
        report = await check_tool(my_tool, arguments={"order": "A-1"}, probe=lambda: len(world.orders))
        report.check()

A report has one finding a rule, in plain words: the rule holds, is broken, or was not checked and why.
`fencepost conformance module:tool` prints the same.

Rule: a suite knows its subject by its port only, and runs the body of a write only with arguments it was given.
"""

from __future__ import annotations

from fencepost.testing.conformance.models import MODEL_RULES, check_model
from fencepost.testing.conformance.report import ConformanceBroken, Finding, Report, Verdict
from fencepost.testing.conformance.tools import TOOL_RULES, check_tool

__all__ = [
    "MODEL_RULES",
    "TOOL_RULES",
    "ConformanceBroken",
    "Finding",
    "Report",
    "Verdict",
    "check_model",
    "check_tool",
]
