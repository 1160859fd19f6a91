"""Every interleaving of a small task keeps every rule, and each planted bug breaks the rule it should.

`python -m tests.core.explore` prints the same searches with the shortest journal that shows each bug.
"""

from __future__ import annotations

import sys

import pytest

from fencepost.core.lifecycle import TaskState
from tests.core.explore.explorer import RULES, search
from tests.core.explore.machine import Machine
from tests.core.explore.planted import PLANTED
from tests.core.explore.world import SCRIPTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_interleaving_of_two_workers_a_cancel_an_approval_and_crashes_keeps_every_rule(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = search(Machine(), SCRIPTS[name])
    with capsys.disabled():
        sys.stdout.write(f"\n{name}: {seen}\n")
    assert seen.found is None, str(seen.found)
    assert set(seen.ends) == {TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED}


@pytest.mark.parametrize("name", PLANTED)
def test_the_search_finds_each_planted_bug_and_the_harm_it_does(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    planted, script = PLANTED[name], next(iter(SCRIPTS.values()))
    seen = search(planted.machine, script)
    assert seen.found is not None, f"not found: {seen}"
    assert planted.breaks in seen.found.broken, str(seen.found)
    assert set(seen.found.broken) <= RULES.keys()
    harmed = search(planted.machine, script, {planted.harm})
    with capsys.disabled():
        sys.stdout.write(f"\n{name}: found after {seen.worlds} worlds, its harm after {harmed.worlds}\n")
    assert harmed.found is not None, f"harm not found: {harmed}"
    assert planted.harm in harmed.found.broken, str(harmed.found)
