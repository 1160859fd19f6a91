"""The real command, `fencepost demo`, killed at its commits and carried on: always the same cited answer.

Rule: what follows a kill is what a person would type, `fencepost list` and `fencepost resume TASK`; a demo killed
before its task was durable is simply run again.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HUNG_SECONDS = 60


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={
            "PYTHONPATH": str(ROOT / "src"),
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "FENCEPOST_STORE": str(folder / "store.db"),
        },
        capture_output=True,
        text=True,
        timeout=HUNG_SECONDS,
        check=False,
    )


def told(folder: Path, *arguments: str) -> dict[str, Any]:
    """What a command says as JSON."""
    done = command(folder, "fencepost", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def carried_on(folder: Path) -> dict[str, Any]:
    """The end of the demo that was killed in this folder."""
    listed = told(folder, "list")["tasks"]
    if not listed:
        return told(folder, "demo")
    (task,) = listed
    return told(folder, "resume", task["id"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, Any]]:
    """The places of the demo, and how it ends when nobody kills it."""
    folder = tmp_path_factory.mktemp("whole")
    done = command(folder, "fencepost.testing.crash", "count", "--", "demo", "--json")
    assert done.returncode == 0, done.stderr
    places: list[str] = json.loads(done.stderr.splitlines()[-1])["places"]
    return places, json.loads(done.stdout)


def problems(folder: Path, place: str, expected: dict[str, Any]) -> list[str]:
    """Say what is wrong with a demo that was killed at a place and carried on."""
    died = command(folder, "fencepost.testing.crash", place, "--", "demo", "--json")
    if died.returncode != -signal.SIGKILL:
        return [f"{place}: the demo ended with {died.returncode} instead of being killed"]
    ended = carried_on(folder)
    found = []
    if (ended["task"]["state"], ended["task"]["reason"]) != ("SUCCEEDED", "COMPLETED"):
        found.append(f"{place}: the task is {ended['task']}")
    if ended["answer"] != expected["answer"]:
        found.append(f"{place}: the answer is {ended['answer']}")
    return found


def test_the_demo_killed_here_and_there_gives_the_same_answer(
    tmp_path: Path, whole: tuple[list[str], dict[str, Any]]
) -> None:
    places, expected = whole
    last = sum(place.startswith("inside:") for place in places)
    chosen = ["inside:1", "after:2", "inside:5", f"before:{last}", f"after:{last}"]
    assert set(chosen) <= set(places)
    found = [each for n, at in enumerate(chosen) for each in problems(tmp_path / str(n), at, expected)]
    assert found == []


@pytest.mark.slow
def test_the_demo_killed_at_any_place_gives_the_same_answer(
    tmp_path: Path, whole: tuple[list[str], dict[str, Any]]
) -> None:
    places, expected = whole
    sys.stdout.write(f"{len(places)} places to be killed at\n")
    found = [each for n, at in enumerate(places) for each in problems(tmp_path / str(n), at, expected)]
    assert (len(places) > 20, found) == (True, [])
