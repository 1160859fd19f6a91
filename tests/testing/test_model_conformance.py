"""The suite for models tells good adapters from bad ones (contract 3.1, 3.5, 5, 6.5)."""

from __future__ import annotations

from typing import Any

from fencepost.core.errors import ModelFailed
from fencepost.testing import ScriptedModel, call, calls
from fencepost.testing.conformance import MODEL_RULES, Verdict, check_model

QUICK: dict[str, Any] = {"run_seconds": 5.0, "grace_seconds": 0.2, "settle_seconds": 0.02}


async def test_a_scripted_model_keeps_every_rule_that_can_be_checked() -> None:
    model = ScriptedModel([calls(call("echo", text="ready"))] * 4)
    cut = ScriptedModel([ModelFailed("the stream ended", kind="incomplete")])
    report = await check_model(model, cut=cut, **QUICK)
    report.check()
    assert tuple(found.rule for found in report.findings) == tuple(MODEL_RULES)
    held = {found.rule for found in report.findings if found.verdict is Verdict.HOLDS}
    assert held >= {"profile", "reply", "sink", "ids", "usage", "loop", "leaves-nothing", "cut"}
