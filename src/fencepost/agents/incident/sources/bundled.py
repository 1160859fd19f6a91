"""Metrics from a file of this package: made up, and marked `synthetic` in every answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from fencepost.agents.incident.sources.errors import Unavailable, Unusable
from fencepost.agents.incident.sources.metrics import (
    MetricLimits,
    MetricRule,
    allowed_metric,
    allowed_services,
    chosen_step,
    range_answer,
    series_answer,
)
from fencepost.agents.incident.sources.window import Window, parse_moment, parse_window, shown


class _Samples(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    synthetic: bool
    metric: str
    service: str
    points: tuple[tuple[float, float], ...]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    synthetic: bool
    note: str
    step: float
    metrics: tuple[MetricRule, ...]
    series: tuple[_Samples, ...]


class BundledMetrics:
    """The same questions and answers as a metrics server, from a file."""

    def __init__(self, path: Path, *, limits: MetricLimits | None = None) -> None:
        self._limits = limits or MetricLimits()
        try:
            self._file = msgspec.json.decode(path.read_bytes(), type=_File)
        except OSError:
            raise Unavailable(
                f"The bundled file {shown(path.name)} is missing; install the package again."
            ) from None
        except (msgspec.DecodeError, json.JSONDecodeError):
            raise Unusable(
                f"The bundled file {shown(path.name)} is damaged; install the package again."
            ) from None
        if not self._file.synthetic or not all(one.synthetic for one in self._file.series):
            raise Unusable(f"{shown(path.name)} is not marked synthetic; only made-up data may be bundled.")

    @property
    def metrics(self) -> tuple[MetricRule, ...]:
        """What may be asked for."""
        return self._file.metrics

    @property
    def services(self) -> tuple[str, ...]:
        """Whose values may be asked for."""
        return tuple(sorted({one.service for one in self._file.series}))

    async def ready(self) -> None:
        """Nothing is left to be found out: the file was read."""

    async def query_range(
        self,
        metric: str,
        services: Sequence[str] = (),
        *,
        start: str,
        end: str,
        step_seconds: float | None = None,
    ) -> dict[str, Any]:
        """The values of a metric over a window; no services means all of them. Raises `SourceError`."""
        wanted = allowed_services(services, self.services)
        window = parse_window(start, end, seconds_max=self._limits.window_seconds)
        step = chosen_step(window, step_seconds, series=len(wanted), limits=self._limits)
        every = max(1, round(step / self._file.step))
        return self._answer(
            allowed_metric(metric, self.metrics), wanted, window, every, every * self._file.step
        )

    async def query_instant(self, metric: str, services: Sequence[str] = (), *, at: str) -> dict[str, Any]:
        """The newest values of a metric at a moment. Raises `SourceError`."""
        moment = parse_moment(at, "at")
        window = Window(moment - self._file.step, moment)
        wanted = allowed_services(services, self.services)
        return self._answer(allowed_metric(metric, self.metrics), wanted, window, 1, None)

    def _answer(
        self, rule: MetricRule, services: Sequence[str], window: Window, every: int, step: float | None
    ) -> dict[str, Any]:
        series = []
        for one in self._file.series:
            if one.metric != rule.name or one.service not in services:
                continue
            inside = [p for p in one.points if window.start <= p[0] <= window.end]
            inside = inside[-1:] if step is None else inside[::every]
            if inside:
                series.append(series_answer(one.service, {"service": one.service}, inside))
        return {"synthetic": True, **range_answer(rule, services, series, window=window, step=step)}
