"""The investigation as a pure function: what was observed so far -> the next question, or the conclusion.

Rules of this file:
- Order: every metric of all services; the logs of the most deviant; the releases before the onset; the end.
- The same question is never asked twice; one that failed is missing evidence.
- Which questions are asked depends on numbers, times and configured names, never on a text that was read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from fencepost.agents.incident.diagnosis import Diagnosis, Kind, Series, diagnose
from fencepost.agents.incident.findings import Brief, Conclusion, Observation, Query
from fencepost.agents.incident.sources.metrics import MetricRule
from fencepost.agents.incident.sources.window import write_moment
from fencepost.agents.incident.telling import conclude
from fencepost.agents.incident.thresholds import THRESHOLDS, Thresholds

PAST_SECONDS = 3600.0  # of metrics before the alert: an hour is one screen and many samples
LOGS_BEFORE = 900.0  # seconds of logs before the onset, to see what is new
LOG_LINES = 20  # returned; patterns count all of them
RELEASES_BEFORE = 14 * 24 * 3600.0  # seconds: far enough to find the release to go back to
RELEASES_LISTED = 50
# Metrics of one kind that are looked at: a fifth tells nothing new, each is read again at every step, and
# those of all three kinds fit into one reply (Limits.calls_per_reply).
METRICS_OF_KIND = 4
UNITS: dict[str, float] = {"": 1.0, "s": 1.0, "ratio": 1.0, "ms": 0.001, "percent": 0.01}


def next_query(
    brief: Brief, observations: Sequence[Observation], *, thresholds: Thresholds = THRESHOLDS
) -> Query | Conclusion:
    """The question that comes next, or the conclusion when nothing is left to ask."""
    wanted, left_out = _wanted(brief.metrics)
    for rule in wanted:
        query = _metrics_query(brief, rule)
        if not _asked(query, observations):
            return query
    diagnosis = diagnose(
        _series(observations),
        alert_at=brief.alert_at,
        until=brief.until,
        graph=brief.graph,
        thresholds=thresholds,
    )
    onset = diagnosis.onset if diagnosis.onset is not None else brief.alert_at - thresholds.alert_lag
    for query in (_logs_query(brief, diagnosis, onset), _releases_query(brief, diagnosis, onset)):
        if not _asked(query, observations):
            return query
    return conclude(
        diagnosis,
        observations,
        onset=onset,
        thresholds=thresholds,
        left_out=left_out,
        present=brief.present,
    )


# -- questions --------------------------------------------------------------------------------------------


def _wanted(rules: Iterable[MetricRule]) -> tuple[list[MetricRule], bool]:
    """The metrics to look at, in their order, and whether some of a known kind are left out."""
    taken: Counter[str] = Counter()
    wanted = []
    for rule in rules:
        if rule.kind == "other":
            continue
        taken[rule.kind] += 1
        if taken[rule.kind] <= METRICS_OF_KIND:
            wanted.append(rule)
    return wanted, taken.total() > len(wanted)


def _metrics_query(brief: Brief, rule: MetricRule) -> Query:
    start = brief.alert_at - PAST_SECONDS
    window = {"start": write_moment(start), "end": write_moment(brief.until)}
    return Query(tool="query_metrics", arguments={"metric": rule.name, "services": [], **window})


def _logs_query(brief: Brief, diagnosis: Diagnosis, onset: float) -> Query:
    return Query(
        tool="search_logs",
        arguments={
            "service": diagnosis.suspects[0].service if diagnosis.suspects else "",
            "level": "error",
            "start": write_moment(onset - LOGS_BEFORE),
            "end": write_moment(brief.until),
            "limit": LOG_LINES,
        },
    )


def _releases_query(brief: Brief, diagnosis: Diagnosis, onset: float) -> Query:
    return Query(
        tool="list_releases",
        arguments={
            "service": diagnosis.culprit or "",
            "start": write_moment(onset - RELEASES_BEFORE),
            "end": write_moment(brief.until),
            "limit": RELEASES_LISTED,
        },
    )


def _asked(query: Query, observations: Sequence[Observation]) -> bool:
    for one in observations:
        if one.tool != query.tool:
            continue
        if one.tool != "query_metrics" or one.arguments.get("metric") == query.arguments["metric"]:
            return True
    return False


def _series(observations: Sequence[Observation]) -> list[Series]:
    """The samples of all metrics seen, in the units that the kinds name."""
    found = []
    for number, one in enumerate(observations):
        if one.tool != "query_metrics" or one.result is None:
            continue
        factor = UNITS.get(one.result.get("unit", ""))
        kind = one.result.get("kind")
        if factor is None or kind not in {k.value for k in Kind}:
            continue
        for place, series in enumerate(one.result["series"]):
            found.append(
                Series(
                    service=series["service"],
                    metric=one.result["metric"],
                    kind=Kind(kind),
                    points=tuple((at, value * factor) for at, value in series["points"]),
                    origin=f"{number}/{place}",
                )
            )
    return found
