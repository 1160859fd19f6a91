"""A server known by its address alone: what is asked of it, when, and again when that has become old."""

from __future__ import annotations

from collections import Counter

import httpx2
import pytest

from fencepost.agents.incident.connected import KNOWN_SECONDS, ConnectedMetrics
from fencepost.agents.incident.sources.errors import Refused, Unusable
from fencepost.agents.incident.sources.metrics import MetricRule
from fencepost.agents.incident.sources.prometheus import PrometheusConfig
from fencepost.testing import FakeClock

AT = "2026-03-14T10:04:00Z"


class Server:
    """A Prometheus that lists one metric and these services, and counts what it is asked."""

    def __init__(self, *services: str) -> None:
        self.services = list(services)
        self.asked: Counter[str] = Counter()

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path.removeprefix("/api/v1/")
        self.asked[path] += 1
        answers = {
            "label/__name__/values": ["error_ratio"],
            "label/service/values": self.services,
            "query": {"resultType": "vector", "result": []},
            "query_range": {"resultType": "matrix", "result": []},
        }
        return httpx2.Response(200, json={"status": "success", "data": answers[path]})


def connected(server: Server, clock: FakeClock | None = None) -> ConnectedMetrics:
    monotonic = (clock or FakeClock()).monotonic
    return ConnectedMetrics(
        "http://127.0.0.1:9090", monotonic=monotonic, transport=httpx2.MockTransport(server)
    )


async def test_nothing_is_known_before_the_first_question_and_the_list_is_read_once_for_all_of_them() -> None:
    server = Server("payment")
    metrics = connected(server)
    assert (metrics.metrics, metrics.services, server.asked.total()) == ((), (), 0)

    await metrics.ready()
    await metrics.query_instant("error_ratio", at=AT)
    await metrics.query_range("error_ratio", start="2026-03-14T10:00:00Z", end=AT)

    assert ([rule.name for rule in metrics.metrics], metrics.services) == (["error_ratio"], ("payment",))
    assert server.asked["label/__name__/values"] == 1
    assert server.asked["query"] == server.asked["query_range"] == 1


async def test_a_service_that_came_later_can_be_asked_for_once_the_list_is_old() -> None:
    server, clock = Server("payment"), FakeClock()
    metrics = connected(server, clock)
    await metrics.ready()
    server.services.append("ledger")

    clock.advance(KNOWN_SECONDS - 1)
    with pytest.raises(Refused, match="Service 'ledger' is not allowed"):
        await metrics.query_instant("error_ratio", ["ledger"], at=AT)
    clock.advance(1)
    said = await metrics.query_instant("error_ratio", ["ledger"], at=AT)

    assert said["service"] == ["ledger"]


async def test_a_list_that_cannot_be_used_is_read_again_at_the_next_question() -> None:
    server = Server()
    metrics = connected(server)
    with pytest.raises(Unusable, match="lists no metric or no 'service' label"):
        await metrics.ready()
    server.services.append("payment")

    await metrics.ready()

    assert metrics.services == ("payment",)


async def test_metrics_that_an_operator_named_are_asked_for_without_reading_a_list() -> None:
    server, clock = Server("payment"), FakeClock()
    rule = MetricRule(name="slow", kind="latency", unit="s", query="max by (service) (odd_name{$selector})")
    config = PrometheusConfig(url="http://127.0.0.1:9090", metrics=(rule,), services=("payment",))
    metrics = ConnectedMetrics(
        config.url, config=config, monotonic=clock.monotonic, transport=httpx2.MockTransport(server)
    )

    await metrics.query_instant("slow", at=AT)
    clock.advance(KNOWN_SECONDS)
    await metrics.query_instant("slow", at=AT)

    assert server.asked == {"query": 2}
    assert metrics.metrics == (rule,)
