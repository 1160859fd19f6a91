"""The tools and models that come with Fencepost keep the rules it asks of others."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.agents.incident.agent import demo_agent
from fencepost.models.wrappers import MeteredModel, TimeoutModel
from fencepost.ports import Model, Tool
from fencepost.testing import FunctionModel, ScriptedModel, say
from fencepost.testing.conformance import Verdict, check_model, check_tool

TOOLS = demo_agent().tools
MODELS: dict[str, Model] = {
    "playbook": demo_agent().model,
    "scripted": ScriptedModel(["ready"] * 4),
    "function": FunctionModel(lambda _: say("ready")),
    "metered": MeteredModel(FunctionModel(lambda _: say("ready"))),
    "timeout": TimeoutModel(FunctionModel(lambda _: say("ready")), seconds=60),
}
QUICK: dict[str, Any] = {"settle_seconds": 0.05}


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.definition.name)
async def test_each_tool_of_the_incident_agent_keeps_the_rules(tool: Tool) -> None:
    report = await check_tool(tool, **QUICK)
    report.check()
    assert report.verdict("strict-arguments") is Verdict.HOLDS


@pytest.mark.parametrize("name", MODELS)
async def test_each_model_that_needs_no_network_keeps_the_rules(name: str) -> None:
    report = await check_model(MODELS[name], **QUICK)
    report.check()
    assert report.verdict("reply") is Verdict.HOLDS
