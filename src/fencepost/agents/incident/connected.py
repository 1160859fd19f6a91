"""A Prometheus server known by its address alone: what may be asked of it is read from itself.

Rules of this file:
- It is read when first needed and again when what is known has become old, so that a worker that runs for
  weeks sees services that came later.
- A client is opened for each question and closed after it, so that an agent is a plain value that belongs to
  no event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx2

from fencepost.agents.incident.sources.metrics import MetricRule
from fencepost.agents.incident.sources.prometheus import (
    PrometheusConfig,
    PrometheusMetrics,
    check_address,
    check_label,
    discover,
    prometheus_client,
)

# Longer than an investigation, so that what may be asked seldom changes within one. Seconds.
KNOWN_SECONDS = 600.0


class ConnectedMetrics:
    """The metrics of one server: whatever it lists that says what it measures, or what `config` names.

    Raises `Refused` at once for an address or label that cannot be one; nothing is sent yet.
    """

    def __init__(
        self,
        url: str,
        *,
        service_label: str = "service",
        config: PrometheusConfig | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        check_address(url)
        check_label(service_label)
        self._url, self._service_label, self._monotonic = url, service_label, monotonic
        self._transport = transport
        self._config, self._is_given = config, config is not None
        self._known_at = 0.0

    @property
    def metrics(self) -> tuple[MetricRule, ...]:
        """What may be asked for, as far as it is known yet."""
        return () if self._config is None else self._config.metrics

    @property
    def services(self) -> tuple[str, ...]:
        """Whose values may be asked for, as far as they are known yet."""
        return () if self._config is None else self._config.services

    async def ready(self) -> None:
        """What may be asked is known. Raises `SourceError` when the server does not say."""
        await self._known()

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
        config = await self._known()
        async with prometheus_client(config, transport=self._transport) as client:
            server = PrometheusMetrics(config, client)
            return await server.query_range(metric, services, start=start, end=end, step_seconds=step_seconds)

    async def query_instant(self, metric: str, services: Sequence[str] = (), *, at: str) -> dict[str, Any]:
        """The values of a metric at a moment. Raises `SourceError`."""
        config = await self._known()
        async with prometheus_client(config, transport=self._transport) as client:
            return await PrometheusMetrics(config, client).query_instant(metric, services, at=at)

    async def _known(self) -> PrometheusConfig:
        known, age = self._config, self._monotonic() - self._known_at
        if known is not None and (self._is_given or age < KNOWN_SECONDS):
            return known
        asking = PrometheusConfig(url=self._url, metrics=(), services=(), service_label=self._service_label)
        async with prometheus_client(asking, transport=self._transport) as client:
            config = await discover(client, self._url, service_label=self._service_label)
        self._config, self._known_at = config, self._monotonic()
        return config
