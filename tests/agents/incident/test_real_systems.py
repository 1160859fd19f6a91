"""The agent over a real Prometheus server, log files and releases: recorded incidents, and a made-up one.

Rules of this file:
- The recorded incidents are read where they are, nothing of them is kept here; labels are read afterwards.
- The made-up one is written below, so that a real server is asked also where the recorded ones are absent.
"""

from __future__ import annotations

import csv
import datetime as dt
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost import Result, SqliteStore, TaskState, run_task
from fencepost.agents.incident.agent import incident_agent
from fencepost.agents.incident.connected import ConnectedMetrics
from fencepost.agents.incident.sources.errors import Refused
from fencepost.agents.incident.sources.window import write_moment
from tests.agents.incident.investigating import asked, check_answer, ended
from tests.agents.incident.prometheus_server import prometheus

ALERT_AFTER = 120.0  # seconds after the injection: a rule that wants two bad minutes
SEEN_AFTER = 240.0  # seconds after the alert: the operator opens the page and looks


def seconds(text: str) -> float:
    return dt.datetime.fromisoformat(text).timestamp()


def prompt_of(inject_time: str) -> str:
    alert_at = seconds(inject_time) + ALERT_AFTER
    return f"Alert at {write_moment(alert_at)}; there is data until {write_moment(alert_at + SEEN_AFTER)}."


async def investigate(url: str, prompt: str, folder: Path, **given: Any) -> Result:
    agent = incident_agent(prometheus=url, **given)
    store = SqliteStore(folder / "tasks.db")
    try:
        return await run_task(agent, prompt, store=store)
    finally:
        await store.close()


def calls_of(table: Path, folder: Path) -> str:
    """The path of a file of calls, made of a recorded table of them."""
    graph: dict[str, list[str]] = defaultdict(list)
    with table.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            graph[row["Source"]].append(row["Target"])
    return str(written(folder / "calls.json", [json.dumps(graph)]))


# -- recorded incidents -----------------------------------------------------------------------------------


@pytest.mark.needs_prometheus
@pytest.mark.needs_data
@pytest.mark.parametrize("with_graph", [True, False], ids=["with the graph of calls", "without it"])
async def test_the_recorded_incident_ends_in_the_service_where_the_fault_was(
    shared_data: Path, tmp_path: Path, *, with_graph: bool
) -> None:
    day = shared_data / "incident" / "nezha" / "online-boutique-2022-08-22"
    inject_time = json.loads((day / "one-incident.json").read_text())["inject_time"]

    with prometheus(day / "one-incident.om.txt", tmp_path) as url:
        result = await investigate(
            url,
            prompt_of(inject_time),
            tmp_path,
            logs=str(day.with_name(f"{day.name}T051809Z") / "logs.jsonl"),
            releases=str(shared_data / "incident" / "petshop" / "high_traffic" / "changes.jsonl"),
            calls=calls_of(day / "dependency.csv", tmp_path) if with_graph else None,
        )

    labels = json.loads((day / "labels.json").read_text())["incidents"]
    (right,) = [one for one in labels if one["inject_time"] == inject_time]
    assert result.state is TaskState.SUCCEEDED
    check_answer(result)
    assert f"Cause: not known. {right['root_cause_service']} stands out (high confidence)." in result.text
    metrics = [arguments["metric"] for name, arguments in asked(result) if name == "query_metrics"]
    assert metrics == ["pod_cpu_limit_usage_percent", "pod_server_latency_p90_seconds"]
    assert "The logs have no line at all" in result.text, "these logs are of another hour"
    assert "rollback" not in [name for name, _ in asked(result)]


NAMES = {
    "cpu_percent_of_limit": "pod_cpu_limit_usage_percent",
    "server_latency_p90_s": "pod_server_latency_p90_seconds",
    "client_latency_p90_s": "pod_client_latency_p90_seconds",
    "memory_mebibytes": "pod_memory_mebibytes",
}


def as_openmetrics(table: Path) -> Iterator[str]:
    """The lines of an OpenMetrics file with the values of a recorded incident's table."""
    with table.open(newline="", encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: (row["pod"], row["time"]))
    for column, name in NAMES.items():
        yield f"# TYPE {name} gauge"
        for row in rows:
            if row[column] != "":
                service = row["pod"].rsplit("-", 2)[0]
                labels = f'service="{service}",pod="{row["pod"]}"'
                yield f"{name}{{{labels}}} {row[column]} {seconds(row['time']):.0f}"
    yield "# EOF"


def written(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.needs_prometheus
@pytest.mark.needs_data
async def test_of_recorded_incidents_with_their_logs_no_wrong_service_is_named(
    shared_data: Path, tmp_path: Path
) -> None:
    folders = sorted((shared_data / "incident" / "nezha").glob("*T*Z"))
    outcomes: dict[str, list[str]] = defaultdict(list)
    for incident in folders:
        label = json.loads((incident / "label.json").read_text())
        work = tmp_path / incident.name
        work.mkdir()
        known = incident.with_name(incident.name.split("T")[0]) / "dependency.csv"
        samples = written(work / "samples.om.txt", as_openmetrics(incident / "metrics.csv"))
        with prometheus(samples, work) as url:
            result = await investigate(
                url,
                prompt_of(label["inject_time"]),
                work,
                logs=str(incident),
                releases=str(written(work / "changes.jsonl", [])),
                calls=calls_of(known, work) if known.exists() else None,
            )
        assert result.state is TaskState.SUCCEEDED
        check_answer(result)
        (logs,) = ended(result, "search_logs")
        assert json.loads(logs.content)["scanned_lines"] >= 430
        outcomes[label["fault"]].append(outcome(result, label["root_cause_service"]))

    assert len(folders) == 6
    assert [one.split(" with ")[0] for one in outcomes["cpu_contention"]] == ["right"] * 3
    assert not [one for found in outcomes.values() for one in found if one.startswith("wrong")]


def outcome(result: Result, right: str) -> str:
    """How the answer ends: "inconclusive", or right or wrong with its confidence."""
    if "Cause: inconclusive." in result.text:
        return "inconclusive"
    (line,) = [line for line in result.text.split("\n") if line.startswith("Cause: not known.")]
    confidence = line.rpartition("(")[2].removesuffix(").")
    return f"{'right' if f' {right} stands out' in line else 'wrong'} with {confidence}"


# -- a made-up incident -----------------------------------------------------------------------------------

BEGAN = seconds("2026-05-04T12:00:00Z")  # of the fault; an hour before it is quiet
STEP = 30
QUIET_SAMPLES = 130
SAMPLES = QUIET_SAMPLES + 16  # eight minutes of the fault
BUCKETS = ("0.1", "0.5", "2.5", "+Inf")


def made_up() -> Iterator[str]:
    """What instrumented services expose: a histogram, a counter of requests and a gauge, by instance.

    Each service gets ten requests in a step. From `BEGAN` on, cart's second instance is slow and fails every
    fifth request; search stays as it was. All of it is synthetic.
    """
    yield "# TYPE http_request_duration_seconds histogram"
    for service, instance, bad in instances():
        counts = dict.fromkeys(BUCKETS, 0)
        lines = defaultdict(list)
        for at, broken in moments(bad):
            within = {"0.1": 2, "0.5": 3, "2.5": 9, "+Inf": 10} if broken else dict.fromkeys(BUCKETS, 10)
            for bucket in BUCKETS:
                counts[bucket] += within[bucket]
                lines[bucket].append(f"{counts[bucket]} {at}")
        for bucket in BUCKETS:
            labels = f'service="{service}",instance="{instance}",le="{bucket}"'
            yield from (f"http_request_duration_seconds_bucket{{{labels}}} {line}" for line in lines[bucket])
    yield "# TYPE http_requests counter"
    for service, instance, bad in instances():
        for code in ("200", "503") if bad else ("200",):
            total = 0
            labels = f'service="{service}",instance="{instance}",code="{code}"'
            for at, broken in moments(bad):
                failed = 2 if broken else 0
                total += failed if code == "503" else 10 - failed
                yield f"http_requests_total{{{labels}}} {total} {at}"
    yield "# TYPE worker_pool_utilization_ratio gauge"
    for service, instance, bad in instances():
        for at, broken in moments(bad):
            labels = f'service="{service}",instance="{instance}"'
            yield f"worker_pool_utilization_ratio{{{labels}}} {0.97 if broken else 0.31} {at}"
    yield "# EOF"


def instances() -> Iterator[tuple[str, str, bool]]:
    for service in ("cart", "search"):
        for number in (1, 2):
            yield service, f"10.0.0.{number}:8080", (service, number) == ("cart", 2)


def moments(bad: bool) -> Iterator[tuple[int, bool]]:
    for number in range(SAMPLES):
        yield int(BEGAN) + STEP * (number - QUIET_SAMPLES), bad and number >= QUIET_SAMPLES


@pytest.fixture(scope="module")
def made_up_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    with prometheus(written(folder / "samples.om.txt", made_up()), folder) as url:
        yield url


@pytest.mark.needs_prometheus
async def test_histograms_counters_and_several_instances_are_understood_from_the_servers_own_list(
    made_up_server: str, tmp_path: Path
) -> None:
    records = [
        {"time": "2026-05-04T11:58:00Z", "service": "cart", "release": "v12"},
        {"time": "2026-05-01T09:00:00Z", "service": "cart", "release": "v11"},
    ]
    lines = [{"time": "2026-05-04T12:00:30Z", "pod": "cart-5f6585d649-fnmft", "line": "ERROR pool is full"}]

    result = await investigate(
        made_up_server,
        "Alert at 2026-05-04T12:02:00Z; data until 2026-05-04T12:07:00Z.",
        tmp_path,
        logs=str(written(tmp_path / "logs.jsonl", map(json.dumps, lines))),
        releases=str(written(tmp_path / "changes.jsonl", map(json.dumps, records))),
    )

    metrics = [arguments["metric"] for name, arguments in asked(result) if name == "query_metrics"]
    assert metrics == [
        "http_request_duration_seconds_p90",
        "http_requests_error_ratio",
        "worker_pool_utilization_ratio",
    ]
    assert result.state is TaskState.SUCCEEDED
    check_answer(result)
    assert "worker_pool_utilization_ratio of cart reached 0.97" in result.text
    assert "Cause (a hypothesis, high confidence): release v12 came shortly before cart" in result.text
    assert "Suggested, not done: roll cart back from v12 to v11." in result.text
    assert 'The most frequent new one is "ERROR pool is full"' in result.text
    assert "search" not in result.text


@pytest.mark.needs_prometheus
async def test_a_service_that_never_failed_has_an_error_ratio_of_zero(
    made_up_server: str,
) -> None:
    said = await ConnectedMetrics(made_up_server).query_range(
        "http_requests_error_ratio", start="2026-05-04T11:30:00Z", end="2026-05-04T12:07:00Z"
    )

    by_service = {series["service"]: series["summary"] for series in said["series"]}
    assert by_service["search"] == {**by_service["search"], "min": 0, "max": 0}
    assert by_service["cart"]["min"] == 0
    assert by_service["cart"]["max"] == pytest.approx(0.1, abs=0.02)  # a fifth of one instance of two


@pytest.mark.needs_prometheus
async def test_a_sample_is_seen_in_its_own_step_only(made_up_server: str) -> None:
    """Samples are half a minute apart: a step of fifteen seconds has every second point."""
    said = await ConnectedMetrics(made_up_server).query_range(
        "worker_pool_utilization_ratio",
        ["search"],
        start="2026-05-04T11:50:05Z",
        end="2026-05-04T11:55:05Z",
        step_seconds=15,
    )

    (series,) = said["series"]
    times = [at for at, _ in series["points"]]
    assert {after - before for before, after in itertools.pairwise(times)} == {2 * 15}


@pytest.mark.needs_prometheus
async def test_what_is_out_of_bounds_is_refused_before_the_real_server_is_asked(made_up_server: str) -> None:
    metrics = ConnectedMetrics(made_up_server, service_label="instance")

    with pytest.raises(Refused, match="ask for one of: http_request_duration_seconds_p90"):
        await metrics.query_instant("up", at="2026-05-04T12:00:00Z")
    with pytest.raises(Refused, match=r"ask for one of: 10\.0\.0\.1:8080, 10\.0\.0\.2:8080"):
        await metrics.query_instant("worker_pool_utilization_ratio", ["cart"], at="2026-05-04T12:00:00Z")
