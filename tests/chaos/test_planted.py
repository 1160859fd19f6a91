"""Chaos names each planted fault by its tool and its rule, and nothing else."""

from __future__ import annotations

import pytest

from fencepost.testing.chaos import chaos
from tests.chaos import good, planted

# A rehearsal of these tools takes less than a second; one that hangs is waited for so long.
SECONDS = 4.0


@pytest.mark.parametrize("fault", list(planted.FAULTS))
def test_a_planted_fault_is_found_and_named(fault: str) -> None:
    tool, rule = planted.FAULTS[fault][0], fault.partition(",")[0]
    report = chaos(lambda: planted.agent(fault), seconds=SECONDS)
    assert {(found.tool, found.rule) for found in report.findings} == {(tool, rule)}
    (found,) = report.findings
    assert tool in found.says
    assert found.did
    assert found.journal[:2] == ("1 Opened", "2 ModelAsked step 1 attempt 1")
    assert any(f" {tool}(" in line for line in found.journal), "the journal does not show the call"


def test_an_effect_that_nobody_can_pin_to_a_call_is_seen_in_the_world() -> None:
    report = chaos(planted.side_by_side)
    assert {found.rule for found in report.findings} == {"same_world"}
    (found,) = report.findings
    assert '"side-by-side": "a\\nb\\na\\nb\\n"' in found.says
    assert "counts_side_by_side" in found.says


def test_a_tool_that_fails_as_it_should_is_no_fault() -> None:
    report = chaos(lambda: good.agent_of(planted.fails_honestly))
    assert report.findings == ()
