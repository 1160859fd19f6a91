"""SIGKILL at every place there is: before, inside and after each commit, before and after each effect.

Whatever place it is, the job carried on gives the same answer, after a person has looked where an outcome is
not known; no payment is made twice, no label under two keys, and the journal is whole.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.crash.payments import ANSWER, ANSWER_OF_READS

ROOT = Path(__file__).parents[2]
TRIAL_SECONDS_MOST = 20 * 60  # hung, not slow: the pairs take about two minutes


def matrix(folder: Path, *options: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the places, and what became of each trial."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.crash.matrix", str(folder), *options],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=TRIAL_SECONDS_MOST,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    whole, *trials = map(json.loads, ran.stdout.splitlines())
    return whole["places"], trials


def wrong(trial: dict[str, Any], *, answer: str, payments: list[str], labels: list[str]) -> list[str]:
    """Say what is wrong with the end of one trial."""
    expected = {
        "text": answer,
        "state": "SUCCEEDED",
        "payments": payments,
        "labels": labels,
        "problems": [],
    }
    found = [
        f"{trial['kills']}: {name} is {trial[name]!r}, not {value!r}"
        for name, value in expected.items()
        if trial[name] != value
    ]
    if not set(trial["label_requests"]) <= set(labels):
        found.append(f"{trial['kills']}: the label was asked for under the keys {trial['label_requests']}")
    return found


@pytest.fixture(scope="module")
def single_kills(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[dict[str, Any]]]:
    return matrix(tmp_path_factory.mktemp("single"))


PAID: dict[str, Any] = {"answer": ANSWER, "payments": ["job:2.0 5", "job:3.0 7"], "labels": ["job:2.1"]}
READ: dict[str, Any] = {"answer": ANSWER_OF_READS, "payments": [], "labels": []}


def test_a_kill_at_any_place_leads_to_the_same_answer_and_never_to_a_second_payment(
    single_kills: tuple[list[str], list[dict[str, Any]]],
) -> None:
    places, trials = single_kills
    sys.stdout.write(f"{len(places)} places to be killed at\n")
    kinds = {place.rpartition(":")[0] for place in places}
    assert {"before", "inside", "after", "pay.effect.before", "pay.effect.after"} <= kinds
    assert [trial["kills"] for trial in trials] == [[place] for place in places]
    assert all(trial["died"] == [True] for trial in trials)
    assert [problem for trial in trials for problem in wrong(trial, **PAID)] == []


def test_people_are_asked_about_a_payment_exactly_where_it_was_started_and_not_ended(
    single_kills: tuple[list[str], list[dict[str, Any]]],
) -> None:
    _, trials = single_kills
    said = {trial["kills"][0]: trial["resolved"] for trial in trials if trial["resolved"]}
    inside_effects = {place: verdicts for place, verdicts in said.items() if place.startswith("pay.")}
    assert inside_effects == {
        "pay.effect.before:1": {"2.0": "did_not_happen"},
        "pay.effect.after:1": {"2.0": "happened"},
        "pay.effect.before:2": {"3.0": "did_not_happen"},
        "pay.effect.after:2": {"3.0": "happened"},
    }
    # The commit with the start was durable and nobody had begun; or the end was on its way to the file.
    others = sorted((p.partition(":")[0], *v.items()) for p, v in said.items() if p not in inside_effects)
    assert others == [
        ("after", ("2.0", "did_not_happen")),
        ("after", ("3.0", "did_not_happen")),
        ("before", ("2.0", "happened")),
        ("before", ("3.0", "happened")),
        ("inside", ("2.0", "happened")),
        ("inside", ("3.0", "happened")),
    ]


def test_a_reading_job_gives_the_same_answer_wherever_it_is_killed(tmp_path: Path) -> None:
    places, trials = matrix(tmp_path, "--reads")
    assert len(trials) == len(places) > 20
    assert [problem for trial in trials for problem in wrong(trial, **READ)] == []
    assert not any(trial["resolved"] for trial in trials)


@pytest.mark.slow
def test_two_kills_in_a_row_at_any_two_places_change_nothing_either(tmp_path: Path) -> None:
    _, trials = matrix(tmp_path, "--pairs")
    assert len(trials) > 500
    assert [problem for trial in trials for problem in wrong(trial, **PAID)] == []
