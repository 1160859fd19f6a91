"""Which service behaves unlike its own past: a deterministic procedure without a model.

Rules of this file:
- Pure: same series, same diagnosis. No clock, files, network or randomness.
- Each series is compared with its own past only. A sample is unusual when it is worse than both the
  whole past and the time just before by `deviation_min` robust deviations; only a run of samples counts.
- Callers of a failing service fail too: with a graph, a deviation that a dependency explains counts for
  the dependency.
- Naming nobody is an answer. Quiet, weak, equal or missing data give "inconclusive" and say which.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

import msgspec

from fencepost.agents.incident.thresholds import THRESHOLDS, Thresholds


class Kind(enum.Enum):
    """What a metric measures, and so in which direction and on what scale it is harmful."""

    LATENCY = "latency"  # seconds; higher is worse
    ERRORS = "errors"  # share of requests that failed, 0..1; higher is worse
    SATURATION = "saturation"  # share of the service's own limit, 0..1; higher is worse


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of one metric of one service, oldest first, in the unit that its kind names.

    `origin` says where the caller got them; a deviation repeats it.
    """

    service: str
    metric: str
    kind: Kind
    points: tuple[tuple[float, float], ...]
    origin: str = ""


class Deviation(msgspec.Struct, frozen=True, kw_only=True):
    """A run of samples of one series that is worse than its past.

    `onset` and `until` are the times of the first and last sample of the run, `peak` its worst sample.
    """

    service: str
    metric: str
    kind: Kind
    deviations: float
    usual: float
    level: float
    peak: float
    onset: float
    until: float
    origin: str = ""


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A deviant service, its score, and the dependency that explains it, if one does."""

    service: str
    score: float
    onset: float
    deviations: tuple[Deviation, ...]
    explained_by: str | None = None


class Confidence(enum.Enum):
    """How far the data goes; it is about the ranking, never a probability that the cause is true."""

    NONE = "none"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Doubt(enum.Enum):
    """Why nobody is named."""

    MISSING_DATA = "too little data to compare with the past"
    QUIET = "no service is worse than its own past"
    WEAK = "the deviation is weak"
    EQUAL = "several services deviate about equally"


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Suspects, worst first, and either the named culprit or the doubt that prevents one."""

    culprit: str | None
    confidence: Confidence
    doubt: Doubt | None
    onset: float | None
    suspects: tuple[Suspect, ...]
    measured: int
    unmeasurable: tuple[str, ...]


Graph = Mapping[str, Sequence[str]]
"""Callers to the services they call."""


def diagnose(
    series: Iterable[Series],
    *,
    alert_at: float,
    until: float,
    graph: Graph | None = None,
    thresholds: Thresholds = THRESHOLDS,
) -> Diagnosis:
    """The services are ranked by how much worse they are than their own past.

    Times are seconds since the epoch. Samples later than `until` are not looked at; samples before
    `alert_at` less the alert lag are the past.
    """
    measured: list[Series] = []
    unmeasurable: list[str] = []
    found: list[Deviation] = []
    for one in series:
        part = _split(one, alert_at=alert_at, until=until, thresholds=thresholds)
        if part is None:
            unmeasurable.append(f"{one.service} {one.metric}")
            continue
        measured.append(one)
        deviation = _deviation(one, part, thresholds=thresholds)
        if deviation is not None:
            found.append(deviation)
    suspects = _rank(found, graph or {}, thresholds=thresholds)
    doubt = _doubt(suspects, measured=len(measured), unmeasurable=len(unmeasurable), thresholds=thresholds)
    return Diagnosis(
        culprit=None if doubt is not None else suspects[0].service,
        confidence=_confidence(suspects, doubt, thresholds=thresholds),
        doubt=doubt,
        onset=min((s.onset for s in suspects[:1]), default=None),
        suspects=suspects,
        measured=len(measured),
        unmeasurable=tuple(unmeasurable),
    )


class _Split(msgspec.Struct, frozen=True):
    past: tuple[float, ...]
    just_before: tuple[float, ...]
    recent: tuple[tuple[float, float], ...]


def _split(series: Series, *, alert_at: float, until: float, thresholds: Thresholds) -> _Split | None:
    """The past, its last part and the time of the alert, or nothing when one of them is too thin."""
    border = alert_at - thresholds.alert_lag
    near = border - thresholds.just_before
    split = _Split(
        past=tuple(v for t, v in series.points if t < border),
        just_before=tuple(v for t, v in series.points if near <= t < border),
        recent=tuple(p for p in series.points if border <= p[0] <= until),
    )
    if len(split.past) < thresholds.past_points_min or not split.just_before:
        return None
    return split if len(split.recent) >= thresholds.run_points_min else None


def _deviation(series: Series, part: _Split, *, thresholds: Thresholds) -> Deviation | None:
    median = statistics.median(part.past)
    mad = statistics.median(abs(v - median) for v in part.past)
    upper = _quantile(part.past, thresholds.upper_quantile) - median
    near = statistics.median(part.just_before)
    usual = max(median, near)
    # A series that had already moved before the alert moves by itself: that move is part of its scale.
    scale = max(
        thresholds.mad_to_sigma * mad,
        upper / thresholds.upper_to_sigma,
        abs(near - median),
        _floor(series.kind, usual, thresholds),
    )
    recent = part.recent
    run = _worst_run([(t, v, (v - usual) / scale) for t, v in recent], thresholds=thresholds)
    if run is None:
        return None
    level = statistics.median(v for _, v, _ in run)
    return Deviation(
        service=series.service,
        metric=series.metric,
        kind=series.kind,
        deviations=min((level - usual) / scale, thresholds.deviation_max),
        usual=usual,
        level=level,
        peak=max(v for _, v, _ in run),
        onset=run[0][0],
        until=run[-1][0],
        origin=series.origin,
    )


def _quantile(values: Sequence[float], share: float) -> float:
    """The value with this share of the values at or below it, between two neighbors if need be."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _worst_run(
    scored: Sequence[tuple[float, float, float]], *, thresholds: Thresholds
) -> list[tuple[float, float, float]] | None:
    runs: list[list[tuple[float, float, float]]] = [[]]
    for sample in scored:
        if sample[2] >= thresholds.deviation_min:
            runs[-1].append(sample)
        elif runs[-1]:
            runs.append([])
    long_enough = [run for run in runs if len(run) >= thresholds.run_points_min]
    return max(long_enough, key=lambda run: sum(s[2] for s in run), default=None)


def _floor(kind: Kind, usual: float, thresholds: Thresholds) -> float:
    match kind:
        case Kind.LATENCY:
            return max(thresholds.latency_floor, thresholds.latency_floor_share * abs(usual))
        case Kind.ERRORS:
            return thresholds.errors_floor
        case Kind.SATURATION:
            return thresholds.saturation_floor
        case _:
            assert_never(kind)


def _weight(kind: Kind, thresholds: Thresholds) -> float:
    match kind:
        case Kind.LATENCY:
            return thresholds.latency_weight
        case Kind.ERRORS:
            return thresholds.errors_weight
        case Kind.SATURATION:
            return thresholds.saturation_weight
        case _:
            assert_never(kind)


def _worth(deviation: Deviation, thresholds: Thresholds) -> float:
    return _weight(deviation.kind, thresholds) * deviation.deviations


def _rank(found: Sequence[Deviation], graph: Graph, *, thresholds: Thresholds) -> tuple[Suspect, ...]:
    by_service: dict[str, dict[Kind, Deviation]] = {}
    for one in found:
        kinds = by_service.setdefault(one.service, {})
        # Two metrics of one kind (p90 and p99) are one piece of evidence: the stronger counts.
        if one.kind not in kinds or one.deviations > kinds[one.kind].deviations:
            kinds[one.kind] = one
    suspects = []
    for service, kinds in by_service.items():
        explained = {kind: _explanation(service, kind, by_service, graph, thresholds) for kind in kinds}
        own = [d for kind, d in kinds.items() if explained[kind] is None]
        callee = next((name for name in explained.values() if name is not None), None)
        suspects.append(
            Suspect(
                service=service,
                score=sum(_worth(d, thresholds) for d in own),
                onset=min(d.onset for d in (own or list(kinds.values()))),
                deviations=tuple(sorted(kinds.values(), key=lambda d: -_worth(d, thresholds))),
                explained_by=callee if not own else None,
            )
        )
    return tuple(sorted(suspects, key=lambda s: (-s.score, s.onset, s.service)))


def _explanation(
    service: str,
    kind: Kind,
    by_service: Mapping[str, Mapping[Kind, Deviation]],
    graph: Graph,
    thresholds: Thresholds,
) -> str | None:
    """The called service whose change of the same kind is large enough to be the reason, if any."""
    if kind is Kind.SATURATION:
        return None
    mine = by_service[service][kind]
    enough = thresholds.explains_share * (mine.level - mine.usual)
    called = []
    for name in _reachable(service, graph):
        if service in _reachable(name, graph):
            continue  # each calls the other: neither explains the other away
        theirs = by_service.get(name, {})
        if kind in theirs and theirs[kind].level - theirs[kind].usual >= enough:
            called.append((theirs[kind].level - theirs[kind].usual, name))
    return max(called)[1] if called else None


def _reachable(service: str, graph: Graph) -> set[str]:
    seen: set[str] = set()
    queue = [service]
    while queue:
        for name in graph.get(queue.pop(), ()):
            if name not in seen and name != service:
                seen.add(name)
                queue.append(name)
    return seen


def _lead(suspects: Sequence[Suspect]) -> float:
    if len(suspects) < 2 or suspects[1].score <= 0:
        return float("inf")
    return suspects[0].score / suspects[1].score


def _doubt(
    suspects: Sequence[Suspect], *, measured: int, unmeasurable: int, thresholds: Thresholds
) -> Doubt | None:
    if measured == 0 or measured < thresholds.measurable_share_min * (measured + unmeasurable):
        return Doubt.MISSING_DATA
    if not suspects or suspects[0].score <= 0:
        return Doubt.QUIET
    if suspects[0].score < thresholds.score_min:
        return Doubt.WEAK
    if _lead(suspects) < thresholds.lead_min:
        return Doubt.EQUAL
    return None


def _confidence(suspects: Sequence[Suspect], doubt: Doubt | None, *, thresholds: Thresholds) -> Confidence:
    if not suspects:
        return Confidence.NONE
    if doubt is not None:
        return Confidence.LOW
    # One symptom alone, however strong, may be a measurement's own habit.
    kinds = len(suspects[0].deviations)
    if kinds > 1 and suspects[0].score >= thresholds.score_high and _lead(suspects) >= thresholds.lead_high:
        return Confidence.HIGH
    return Confidence.MEDIUM
