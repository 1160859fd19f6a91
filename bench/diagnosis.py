"""How often the diagnosis names the right service: `python -m bench.diagnosis [DATA]`.

Rules of this bench:
- The procedure gets what an operator has: the time of an alert, a few minutes after it, the past, and
  the graph of calls. No label is given to it; labels are read afterwards, to count.
- Thresholds were chosen on PetShop. Nezha is only reported.
- PetShop: the alert is the issue's symptom time; normal values stand in for the past and are put before
  the issue. A node named `_remote` or `_client` is a caller's view of another node and is left out.
- Nezha: an incident folder uses the graph of the same system's day folder, where there is one. The
  incident folder of 2022-08-22T05:18 repeats a fault of the day folder: cases count it, `distinct` does not.
- Nezha: the alert is two minutes after the injection; four more minutes are seen; an hour is the past.
- A quiet window is walked through as if an alert had come every minute; nobody may be named.

`first`: named and right. `in 3`: right service among the first three, whatever the verdict.
`inconclusive`: nobody named. `wrong`: named with a verdict and not the right one.
"""

from __future__ import annotations

import csv
import datetime as dt
import json
import os
import platform
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fencepost.agents.incident.diagnosis import Diagnosis, Graph, Kind, Series, diagnose

NEZHA_ALERT_AFTER = 120.0  # seconds; a rule that wants two bad minutes
NEZHA_SEEN_AFTER = 240.0  # seconds; the operator opens the page and looks
NEZHA_PAST = 3600.0  # seconds of past
PETSHOP_SEEN_AFTER = 900.0  # seconds: three intervals of five minutes
PETSHOP_STEP = 300.0
DAY = 86400.0  # the normal values are of another day: they are the past, not the time just before

NEZHA_METRICS = {
    "cpu_percent_of_limit": (Kind.SATURATION, 0.01),
    "server_latency_p90_s": (Kind.LATENCY, 1.0),
}
PETSHOP_METRICS = {("latency", "Average"): Kind.LATENCY, ("availability", "Average"): Kind.ERRORS}


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One labelled fault and what the procedure said about it."""

    source: str
    name: str
    fault: str
    right: str
    diagnosis: Diagnosis

    @property
    def outcome(self) -> str:
        """`first`, `inconclusive` or `wrong`: exactly one."""
        if self.diagnosis.culprit is None:
            return "inconclusive"
        return "first" if self.diagnosis.culprit == self.right else "wrong"

    @property
    def in_three(self) -> bool:
        """The right service is among the first three suspects."""
        return self.right in [s.service for s in self.diagnosis.suspects[:3]]


def seconds(text: str) -> float:
    return dt.datetime.fromisoformat(text).timestamp()


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


# -- Nezha ------------------------------------------------------------------------------------------------


def nezha_series(path: Path) -> list[Series]:
    points: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            service = row["pod"].rsplit("-", 2)[0]
            for metric, (_, factor) in NEZHA_METRICS.items():
                if row[metric] != "":
                    points[service, metric].append((seconds(row["time"]), float(row[metric]) * factor))
    return [
        Series(service=service, metric=metric, kind=NEZHA_METRICS[metric][0], points=tuple(sorted(values)))
        for (service, metric), values in sorted(points.items())
    ]


def nezha_graph(path: Path, services: set[str]) -> Graph:
    graph: dict[str, list[str]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["Target"] in services:
                graph[row["Source"]].append(row["Target"])
    return graph


def nezha_diagnosis(series: Iterable[Series], alert_at: float, graph: Graph | None) -> Diagnosis:
    seen = [
        msgspec.structs.replace(s, points=tuple(p for p in s.points if p[0] >= alert_at - NEZHA_PAST))
        for s in series
    ]
    return diagnose(seen, alert_at=alert_at, until=alert_at + NEZHA_SEEN_AFTER, graph=graph)


def nezha_cases(folder: Path) -> Iterator[Case]:
    for day in sorted(p.parent for p in folder.glob("*/labels.json")):
        series = nezha_series(day / "metrics.csv")
        graph = nezha_graph(day / "dependency.csv", {s.service for s in series})
        for label in read_json(day / "labels.json")["incidents"]:
            alert_at = seconds(label["inject_time"]) + NEZHA_ALERT_AFTER
            yield nezha_case(day, label, nezha_diagnosis(series, alert_at, graph))
    for one in sorted(p.parent for p in folder.glob("*/label.json")):
        label = read_json(one / "label.json")
        alert_at = seconds(label["inject_time"]) + NEZHA_ALERT_AFTER
        seen = nezha_series(one / "metrics.csv")
        known = one.parent / one.name.split("T")[0] / "dependency.csv"
        calls = nezha_graph(known, {s.service for s in seen}) if known.exists() else None
        yield nezha_case(one, label, nezha_diagnosis(seen, alert_at, calls))


def nezha_case(folder: Path, label: dict[str, str], diagnosis: Diagnosis) -> Case:
    return Case(
        source="nezha",
        name=f"{folder.name} {label['inject_time']}",
        fault=label["fault"],
        right=label["root_cause_service"],
        diagnosis=diagnosis,
    )


def nezha_quiet(folder: Path) -> Iterator[Diagnosis]:
    for day in sorted(p.parent for p in folder.glob("*/labels.json")):
        series = nezha_series(day / "metrics.csv")
        graph = nezha_graph(day / "dependency.csv", {s.service for s in series})
        start, end = (seconds(t) for t in read_json(day / "labels.json")["quiet_window"])
        alert_at = start + 300  # the alert lag looks back five minutes: those are quiet too
        while alert_at + NEZHA_SEEN_AFTER <= end:
            yield nezha_diagnosis(series, alert_at, graph)
            alert_at += 60


# -- PetShop ----------------------------------------------------------------------------------------------


def petshop_series(path: Path) -> dict[tuple[str, Kind], list[tuple[float, float]]]:
    with path.open(newline="", encoding="utf-8") as file:
        services, metrics, statistics, _, *rows = csv.reader(file)
    found: dict[tuple[str, Kind], list[tuple[float, float]]] = {}
    for column in range(1, len(services)):
        kind = PETSHOP_METRICS.get((metrics[column], statistics[column]))
        if kind is None or services[column].endswith(("_remote", "_client")):
            continue
        points = [(float(row[0]), float(row[column])) for row in rows if row[column] != ""]
        if kind is Kind.ERRORS:
            points = [(t, 1 - v / 100) for t, v in points]
        found[services[column], kind] = points
    return found


def petshop_graph(path: Path) -> Graph:
    with path.open(newline="", encoding="utf-8") as file:
        (_, *called), *rows = csv.reader(file)
    return {row[0]: [n for n, weight in zip(called, row[1:], strict=True) if float(weight)] for row in rows}


def petshop_diagnosis(
    normal: dict[tuple[str, Kind], list[tuple[float, float]]],
    seen: dict[tuple[str, Kind], list[tuple[float, float]]],
    alert_at: float,
    graph: Graph,
) -> Diagnosis:
    first = min(points[0][0] for points in seen.values() if points)
    series = []
    for (service, kind), points in sorted(seen.items(), key=lambda item: (item[0][0], item[0][1].value)):
        values = [v for _, v in normal.get((service, kind), [])]
        past = [(first - DAY - PETSHOP_STEP * (len(values) - i), v) for i, v in enumerate(values)]
        series.append(Series(service=service, metric=kind.value, kind=kind, points=(*past, *points)))
    return diagnose(series, alert_at=alert_at, until=alert_at + PETSHOP_SEEN_AFTER, graph=graph)


def petshop_cases(folder: Path) -> Iterator[Case]:
    normal = petshop_series(folder / "high_traffic" / "noissue-slice.csv")
    for issue in sorted(p.parent for p in folder.glob("*/*/target.json")):
        target = read_json(issue / "target.json")
        yield Case(
            source="petshop",
            name=f"{issue.parent.name} {issue.name}",
            fault=target["target"]["metric"],
            right=target["root_cause"]["node"],
            diagnosis=petshop_diagnosis(
                normal,
                petshop_series(issue / "metrics.csv"),
                float(target["target"]["timestamp"]),
                petshop_graph(issue.parent / "graph.csv"),
            ),
        )


def petshop_quiet(folder: Path) -> Iterator[Diagnosis]:
    """The normal values against their own past, an alert at every interval of the second half."""
    path = folder / "high_traffic" / "noissue-slice.csv"
    seen = petshop_series(path)
    graph = petshop_graph(folder / "high_traffic" / "graph.csv")
    times = sorted({t for points in seen.values() for t, _ in points})
    for alert_at in times[len(times) // 2 : -3]:
        yield petshop_diagnosis({}, seen, alert_at, graph)


# -- the report -------------------------------------------------------------------------------------------

CPU_FAULTS = {"cpu_contention", "cpu_consumed"}


def count(cases: Iterable[Case]) -> dict[str, int]:
    cases = list(cases)
    outcomes = Counter(case.outcome for case in cases)
    return {
        "cases": len(cases),
        "first": outcomes["first"],
        "in_three": sum(case.in_three for case in cases),
        "inconclusive": outcomes["inconclusive"],
        "wrong": outcomes["wrong"],
    }


def print_table(cases: Sequence[Case]) -> None:
    print(f"{'data':8} {'fault':16} {'cases':>6} {'first':>6} {'in 3':>6} {'inconclusive':>13} {'wrong':>6}")
    groups: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.source, case.fault].append(case)
    for (source, fault), group in [*sorted(groups.items()), (("all", ""), list(cases))]:
        n = count(group)
        print(
            f"{source:8} {fault:16} {n['cases']:6} {n['first']:6} {n['in_three']:6}"
            f" {n['inconclusive']:13} {n['wrong']:6}"
        )
    for case in cases:
        if case.outcome == "wrong":
            print(f"wrong: {case.name}, {case.fault}: named {case.diagnosis.culprit}, it was {case.right}")


def report(root: Path) -> dict[str, Any]:
    cases = [*petshop_cases(root / "petshop"), *nezha_cases(root / "nezha")]
    cpu = [case for case in cases if case.source == "nezha" and case.fault in CPU_FAULTS]
    # A day folder and an incident folder of the same time are one fault seen in two extracts.
    distinct = {(case.right, case.name.rsplit(" ", 1)[1]): case for case in cpu}
    quiet = {"nezha": list(nezha_quiet(root / "nezha")), "petshop": list(petshop_quiet(root / "petshop"))}
    print_table(cases)
    named = {name: sum(d.culprit is not None for d in found) for name, found in quiet.items()}
    for name, found in quiet.items():
        print(f"quiet windows of {name}: {len(found)} looked at, a culprit named in {named[name]}")
    total = count(cases)
    return {
        "bench": "diagnosis",
        "nezha_cpu": {
            **count(cpu),
            "distinct": len(distinct),
            "distinct_first": count(distinct.values())["first"],
        },
        "nezha": count(case for case in cases if case.source == "nezha"),
        "petshop": count(case for case in cases if case.source == "petshop"),
        "wrong_share": round(total["wrong"] / total["cases"], 4),
        "quiet": {name: {"windows": len(found), "named": named[name]} for name, found in quiet.items()},
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }


def data_folder(arguments: Sequence[str]) -> Path:
    if arguments:
        return Path(arguments[0])
    if found := os.environ.get("FENCEPOST_DATA"):
        return Path(found) / "incident"
    return Path(__file__).resolve().parents[2] / "shared" / "data" / "incident"


def main(arguments: Sequence[str]) -> int:
    root = data_folder(arguments)
    if not (root / "nezha").is_dir() or not (root / "petshop").is_dir():
        print(f"{root} has no nezha and petshop folders; give the incident data folder as the argument.")
        return 2
    print(json.dumps(report(root)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
