"""A Prometheus server known by its address alone: what may be asked of it is read from it, once, when first needed.

A client is opened for each question and closed after it, so that an agent is a plain value that belongs to no event
loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fencepost.agents.incident.sources.errors import Refused
from fencepost.agents.incident.sources.metrics import MetricRule
from fencepost.agents.incident.sources.prometheus import (
    PrometheusConfig,
    PrometheusMetrics,
    discover,
    prometheus_client,
)


class ConnectedMetrics:
    """The metrics of one server; `config` None means: whatever it lists that says what it measures."""

    def __init__(self, url: str, *, service_label: str = "service", config: PrometheusConfig | None = None) -> None:
        self._url, self._service_label, self._config = url, service_label, config

    @property
    def metrics(self) -> tuple[MetricRule, ...]:
        """What may be asked for, as far as it is known yet."""
        return () if self._config is None else self._config.metrics

    @property
    def services(self) -> tuple[str, ...]:
        """Whose values may be asked for, as far as they are known yet."""
        return () if self._config is None else self._config.services

    async def ready(self) -> None:
        """Know what may be asked. Raises `SourceError` when the server does not say."""
        if self._config is not None:
            return
        unknown = PrometheusConfig(url=self._url, metrics=(), services=(), service_label=self._service_label)
        async with prometheus_client(unknown) as client:
            self._config = await discover(client, self._url, service_label=self._service_label)

    async def query_range(
        self,
        metric: str,
        services: Sequence[str] = (),
        *,
        start: str,
        end: str,
        step_seconds: float | None = None,
    ) -> dict[str, Any]:
        """The values of a metric over a window. Raises `SourceError`."""
        await self.ready()
        config = self._known()
        async with prometheus_client(config) as client:
            server = PrometheusMetrics(config, client)
            return await server.query_range(metric, services, start=start, end=end, step_seconds=step_seconds)

    async def query_instant(self, metric: str, services: Sequence[str] = (), *, at: str) -> dict[str, Any]:
        """The values of a metric at a moment. Raises `SourceError`."""
        await self.ready()
        config = self._known()
        async with prometheus_client(config) as client:
            return await PrometheusMetrics(config, client).query_instant(metric, services, at=at)

    def _known(self) -> PrometheusConfig:
        if self._config is None:
            raise Refused(f"Nothing is known yet of Prometheus at {self._url}; ask again.")
        return self._config
