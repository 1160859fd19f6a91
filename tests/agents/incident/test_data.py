"""The bundled incident: deterministic, small, marked, and answered like a real source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fencepost.agents.incident import data
from fencepost.agents.incident.data import generate
from fencepost.agents.incident.sources.bundled import BundledMetrics
from fencepost.agents.incident.sources.errors import Refused, Unavailable, Unusable
from fencepost.agents.incident.sources.logs import LogFiles, LogsConfig
from fencepost.agents.incident.sources.metrics import MetricLimits

START, END = "2026-03-14T09:00:00Z", "2026-03-14T10:12:00Z"


def test_the_files_in_the_tree_are_those_that_the_script_writes(tmp_path: Path) -> None:
    generate.main([str(tmp_path)])

    written = {str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    bundled = {str(p.relative_to(data.FOLDER)): p.read_bytes() for p in data.FOLDER.rglob("*.json*")}
    assert written == bundled
    assert sum(map(len, bundled.values())) < 150_000


def test_every_file_name_and_every_record_says_synthetic() -> None:
    for path in data.FOLDER.rglob("*.json*"):
        assert path.name.startswith("synthetic-")
        for line in path.read_text(encoding="utf-8").splitlines():
            assert json.loads(line)["synthetic"] is True
    series = json.loads(data.METRICS.read_text(encoding="utf-8"))["series"]
    assert all(one["synthetic"] is True for one in series)


async def test_bundled_metrics_answer_as_a_server_does_and_say_that_they_are_synthetic() -> None:
    source = BundledMetrics(data.METRICS)

    said = await source.query_range("error_rate", ["payment"], start=START, end=END)

    assert said["synthetic"] is True
    assert list(said)[1:] == ["metric", "kind", "unit", "service", "start", "end", "step", "series"]
    (series,) = said["series"]
    assert series["summary"]["max"] == 0.08
    assert len(series["points"]) == 73
    assert source.services == ("checkout", "gateway", "inventory", "notification", "payment")


async def test_an_instant_of_bundled_metrics_is_the_newest_sample() -> None:
    said = await BundledMetrics(data.METRICS).query_instant("error_rate", at="2026-03-14T09:10:30Z")

    assert len(said["series"]) == 5
    assert {one["points"][0][0] for one in said["series"]} == {1773479400}
    assert said["step"] is None


async def test_a_larger_step_gives_fewer_points_of_bundled_metrics() -> None:
    said = await BundledMetrics(data.METRICS).query_range(
        "error_rate", ["payment"], start=START, end=END, step_seconds=300
    )

    assert said["step"] == 300
    assert len(said["series"][0]["points"]) == 15


async def test_bundled_metrics_refuse_what_a_server_would() -> None:
    source = BundledMetrics(data.METRICS, limits=MetricLimits(window_seconds=60))

    with pytest.raises(Refused, match="Metric 'up' is not allowed"):
        await source.query_instant("up", at=START)
    with pytest.raises(Refused, match="Service 'nobody' is not allowed"):
        await source.query_instant("error_rate", ["nobody"], at=START)
    with pytest.raises(Refused, match="at most 60 s"):
        await source.query_range("error_rate", start=START, end=END)


def test_a_missing_damaged_or_unmarked_file_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="is missing; install the package again"):
        BundledMetrics(tmp_path / "synthetic-metrics.json")

    damaged = tmp_path / "damaged.json"
    damaged.write_text("{", encoding="utf-8")
    with pytest.raises(Unusable, match="is damaged"):
        BundledMetrics(damaged)

    unmarked = tmp_path / "unmarked.json"
    text = data.METRICS.read_text(encoding="utf-8")
    unmarked.write_text(text.replace('"synthetic":true', '"synthetic":false', 1), encoding="utf-8")
    with pytest.raises(Unusable, match="is not marked synthetic"):
        BundledMetrics(unmarked)


async def test_the_hostile_line_is_in_the_bundled_logs_with_its_escapes() -> None:
    source = LogFiles(LogsConfig(path=str(data.LOGS), synthetic=True))

    said = await source.search("payment", contains="IGNORE ALL PREVIOUS", start=START, end=END)

    (line,) = said["lines"]
    assert line["message"] == generate.HOSTILE
    assert "\u001b[2J" in line["message"]
    assert said["synthetic"] is True
