"""What a metrics source offers and how its answer looks, whatever stands behind it.

The answer: `metric`, `kind`, `unit`, `service` (the names asked for), `start`, `end` (RFC 3339), `step`
(seconds, null for an instant), `series`, and `warnings` where there are any. A series has `service`,
`labels`, `points` ([[seconds, value], …], oldest first) and `summary`: `min`, `max`, `max_at`, `median`,
`last`, which are null without points.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from fencepost.agents.incident.sources.errors import Refused
from fencepost.agents.incident.sources.window import Window, shown, write_moment

NAMES_SHOWN = 20  # of what is allowed, in a refusal
STEP_USUAL = 60.0  # seconds, when no step was asked for: an incident is told in minutes
SIGNIFICANT_DIGITS = 6  # of a value: what a person compares; it also bounds the size of a point

# Parts of a histogram or summary and running totals: they only grow, whatever the rest of the name says.
CUMULATIVE = ("_total", "_count", "_sum", "_bucket", "_created")
# What a service sees of those it calls: the callee's behavior, which the callee's own metrics tell better.
OUTWARD = frozenset({"client", "outbound", "upstream"})

MetricKind = Literal["latency", "errors", "saturation", "other"]


class MetricRule(msgspec.Struct, frozen=True, kw_only=True):
    """One metric that may be asked for.

    `query` is for what is not a plain gauge: an expression of the operator's in which `$selector` stands for
    the label selector, e.g. `sum by (service) (rate(http_errors_total{$selector}[5m]))`, and `$step` for the
    step that was chosen, as in `[$step]`.
    """

    name: str
    kind: MetricKind = "other"
    unit: str = ""
    query: str | None = None


class MetricLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one question may read and return."""

    window_seconds: float = 24 * 3600  # an incident and the day before it; longer is a report
    points: int = 2_000  # in all series together: about 50 KB, which fits what a model is shown
    series: int = 100  # more cannot be read side by side
    step_seconds_min: float = 15  # the usual scrape interval: finer repeats samples
    response_bytes: int = 4 * 1024 * 1024  # a hundred times the points allowed
    seconds: float = 15  # a query that runs longer harms the server it asks


class Metrics(Protocol):
    """A metrics source: a real one or the bundled one."""

    @property
    def metrics(self) -> tuple[MetricRule, ...]:
        """What may be asked for."""
        ...

    @property
    def services(self) -> tuple[str, ...]:
        """Whose values may be asked for."""
        ...

    async def query_range(
        self,
        metric: str,
        services: Sequence[str] = (),
        *,
        start: str,
        end: str,
        step_seconds: float | None = None,
    ) -> dict[str, Any]:
        """The values of a metric over a window; no services means all of them."""
        ...

    async def query_instant(self, metric: str, services: Sequence[str] = (), *, at: str) -> dict[str, Any]:
        """The values of a metric at a moment."""
        ...


def allowed_metric(name: str, rules: Iterable[MetricRule]) -> MetricRule:
    """The rule of the metric, or `Refused` with the names that are allowed."""
    rules = tuple(rules)
    for rule in rules:
        if rule.name == name:
            return rule
    raise Refused(f"Metric {shown(name)} is not allowed; ask for one of: {_listed(r.name for r in rules)}.")


def allowed_services(names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The services asked for (all known ones when none was named), or `Refused` with the allowed."""
    for name in names:
        if name not in known:
            raise Refused(f"Service {shown(name)} is not allowed; ask for one of: {_listed(known)}.")
    return tuple(dict.fromkeys(names)) or tuple(known)


def chosen_step(window: Window, asked: float | None, *, series: int, limits: MetricLimits) -> float:
    """The step asked for, or the finest whole one that keeps within the points allowed."""
    length = window.end - window.start
    finest = max(limits.step_seconds_min, math.ceil(length * max(series, 1) / limits.points))
    if asked is None:
        return max(finest, STEP_USUAL)
    if not math.isfinite(asked) or asked < limits.step_seconds_min:
        raise Refused(
            f"step_seconds {asked:g} is finer than the {limits.step_seconds_min:g} allowed; widen it."
        )
    if asked < finest:
        raise Refused(
            f"step_seconds {asked:g} gives more than {limits.points} points; use at least {finest:g}, "
            "a shorter window or fewer services."
        )
    return asked


def series_answer(
    service: str, labels: dict[str, str], points: Iterable[tuple[float, float]]
) -> dict[str, Any]:
    """One series of the answer; values that are no numbers are left out and counted."""
    kept: list[list[float]] = []
    dropped = 0
    for at, value in points:
        if math.isfinite(value):
            kept.append([_whole(at), _rounded(value)])
        else:
            dropped += 1
    answer: dict[str, Any] = {
        "service": service,
        "labels": labels,
        "points": kept,
        "summary": _summary(kept),
    }
    if dropped:
        answer["not_numbers"] = dropped
    return answer


def range_answer(
    rule: MetricRule,
    services: Sequence[str],
    series: list[dict[str, Any]],
    *,
    window: Window,
    step: float | None,
) -> dict[str, Any]:
    """The answer in the form that the top of this file describes."""
    return {
        "metric": rule.name,
        "kind": rule.kind,
        "unit": rule.unit,
        "service": list(services),
        "start": write_moment(window.start),
        "end": write_moment(window.end),
        "step": step,
        "series": series,
    }


def is_outward(name: str) -> bool:
    """The metric's name says that it is about calls the service makes."""
    return not OUTWARD.isdisjoint(_words(name))


def described_metric(name: str) -> MetricRule:
    """A rule from the words of a metric's name: what it measures and in which unit, `other` when unclear.

    `other` also for what cannot be compared as it is (a running total) or says little about the service that
    shows it (the latency of the calls it makes).
    """
    words = _words(name)
    kind: MetricKind = "other"
    if name.lower().endswith(CUMULATIVE) or words & OUTWARD:
        kind = "other"
    elif words & {"latency", "duration"}:
        kind = "latency"
    elif words & {"error", "errors", "failure", "failures"} and words & {"rate", "ratio", "percent", "share"}:
        kind = "errors"
    elif words & {"saturation", "utilization", "utilisation"} or {"cpu", "limit"} <= words:
        kind = "saturation"
    units = {"seconds": "s", "milliseconds": "ms", "ms": "ms", "percent": "percent", "ratio": "ratio"}
    unit = next((units[word] for word in units if word in words), "")
    if not unit:
        unit = {"latency": "s", "errors": "ratio", "saturation": "ratio", "other": ""}[kind]
    return MetricRule(name=name, kind=kind, unit=unit)


def _words(name: str) -> frozenset[str]:
    return frozenset(re.split(r"[^a-z0-9]+", name.lower()))


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return (", ".join(names[:NAMES_SHOWN]) or "none is configured") + more


def _summary(points: Sequence[Sequence[float]]) -> dict[str, float | str | None]:
    if not points:
        return {"min": None, "max": None, "max_at": None, "median": None, "last": None}
    values = [value for _, value in points]
    highest = max(values)
    return {
        "min": min(values),
        "max": highest,
        "max_at": write_moment(next(at for at, value in points if value == highest)),
        "median": _rounded(statistics.median(values)),
        "last": values[-1],
    }


def _rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def _whole(seconds: float) -> float:
    return int(seconds) if seconds == int(seconds) else round(seconds, 3)
