"""The metrics source against made-up and recorded answers of a Prometheus server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fencepost.agents.incident.sources.errors import Refused, SourceError, Unavailable, Unusable
from fencepost.agents.incident.sources.metrics import MetricLimits, MetricRule, described_metric
from fencepost.agents.incident.sources.prometheus import (
    PrometheusConfig,
    PrometheusMetrics,
    discover,
    prometheus_client,
)

ERRORS = MetricRule(name="error_rate", kind="errors", unit="ratio")
START, END = "2026-03-14T09:00:00Z", "2026-03-14T10:00:00Z"
T0 = 1773478800


def config(**changes: Any) -> PrometheusConfig:
    given = {"url": "http://127.0.0.1:9090", "metrics": (ERRORS,), "services": ("payment", "checkout")}
    return PrometheusConfig(**{**given, **changes})


def matrix(*series: dict[str, Any], **more: Any) -> httpx2.Response:
    return httpx2.Response(
        200, json={"status": "success", "data": {"resultType": "matrix", "result": list(series)}, **more}
    )


def one(service: str, *values: str) -> dict[str, Any]:
    pairs = [[T0 + 60 * i, value] for i, value in enumerate(values)]
    return {"metric": {"__name__": "error_rate", "service": service, "pod": "p"}, "values": pairs}


async def ask(
    answer: httpx2.Response | Callable[[httpx2.Request], httpx2.Response],
    *,
    metric: str = "error_rate",
    services: Sequence[str] = (),
    start: str = START,
    end: str = END,
    step: float | None = None,
    known: Sequence[str] | None = None,
    seen: list[httpx2.Request] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    def reply(request: httpx2.Request) -> httpx2.Response:
        if seen is not None:
            seen.append(request)
        return answer(request) if callable(answer) else answer

    made = config(**changes) if known is None else config(services=tuple(known), **changes)
    async with prometheus_client(made, transport=httpx2.MockTransport(reply)) as client:
        source = PrometheusMetrics(made, client)
        return await source.query_range(metric, services, start=start, end=end, step_seconds=step)


async def test_a_range_answer_has_points_and_a_summary_of_each_series() -> None:
    said = await ask(matrix(one("payment", "0.002", "0.08", "0.01")), services=["payment"])

    assert said == {
        "metric": "error_rate",
        "kind": "errors",
        "unit": "ratio",
        "service": ["payment"],
        "start": START,
        "end": END,
        "step": 60.0,
        "series": [
            {
                "service": "payment",
                "labels": {"service": "payment", "pod": "p"},
                "points": [[T0, 0.002], [T0 + 60, 0.08], [T0 + 120, 0.01]],
                "summary": {
                    "min": 0.002,
                    "max": 0.08,
                    "max_at": "2026-03-14T09:01:00Z",
                    "median": 0.01,
                    "last": 0.01,
                },
            }
        ],
    }


async def test_the_query_is_built_from_allowed_names_only() -> None:
    seen: list[httpx2.Request] = []

    await ask(matrix(), services=["payment"], seen=seen)
    await ask(matrix(), seen=seen, services=(), url="http://127.0.0.1:9090/prom/")

    assert seen[0].method == "GET"
    assert seen[0].url.path == "/api/v1/query_range"
    assert dict(seen[0].url.params) == {
        "query": 'last_over_time(error_rate{service=~"payment"}[60s])',
        "start": "1773478800.0",
        "end": "1773482400.0",
        "step": "60.0",
    }
    assert seen[1].url.path == "/prom/api/v1/query_range"
    assert seen[1].url.params["query"] == 'last_over_time(error_rate{service=~"payment|checkout"}[60s])'


async def test_a_service_name_is_matched_literally() -> None:
    seen: list[httpx2.Request] = []

    await ask(matrix(), seen=seen, services=["a.b"], known=("a.b", "axb"))

    assert r'{service=~"a\\.b"}' in seen[0].url.params["query"]


async def test_a_configured_query_gets_the_selector_in_its_place() -> None:
    seen: list[httpx2.Request] = []
    rate = MetricRule(name="error_rate", query='sum by (app) (rate(errors_total{$selector,code="500"}[5m]))')

    await ask(matrix(), seen=seen, services=["payment"], metrics=(rate,), service_label="app")

    assert seen[0].url.params["query"] == 'sum by (app) (rate(errors_total{app=~"payment",code="500"}[5m]))'


async def test_a_query_looks_back_as_far_as_its_own_step_in_whole_seconds() -> None:
    seen: list[httpx2.Request] = []

    await ask(matrix(), seen=seen, services=["payment"], step=60.5)

    assert seen[0].url.params["query"].endswith("[61s])")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (
            {"metric": "up} or vector(1)"},
            "Metric 'up} or vector(1)' is not allowed; ask for one of: error_rate.",
        ),
        (
            {"services": ["payment", 'x"} or up{a="']},
            "Service 'x\"} or up{a=\"' is not allowed; ask for one of: payment, checkout.",
        ),
        ({"start": "yesterday"}, "start 'yesterday' is no time; write it like 2026-01-31T09:00:00Z."),
        ({"start": "2026-03-14T09:00:00"}, "start '2026-03-14T09:00:00' has no time zone;"),
        ({"start": END, "end": START}, "is not after start"),
        ({"start": "2026-03-10T09:00:00Z"}, "The window is 349200 s long and at most 86400 s are allowed"),
        ({"step": 1.0}, "step_seconds 1 is finer than the 15 allowed"),
        ({"step": float("nan")}, "step_seconds nan is finer"),
        ({"step": 0.0}, "step_seconds 0 is finer"),
        (
            {"step": 15.0, "start": "2026-03-13T10:00:00Z"},
            "step_seconds 15 gives more than 2000 points; use at least 87",
        ),
    ],
)
async def test_what_is_not_allowed_is_refused_in_one_sentence_before_anything_is_sent(
    asked: dict[str, Any], sentence: str
) -> None:
    seen: list[httpx2.Request] = []

    with pytest.raises(Refused) as refusal:
        await ask(matrix(), seen=seen, **asked)

    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert seen == []


async def test_without_a_step_a_long_window_gets_one_that_keeps_within_the_points() -> None:
    seen: list[httpx2.Request] = []

    await ask(matrix(), seen=seen, start="2026-03-13T10:00:00Z")

    assert seen[0].url.params["step"] == "87.0" or seen[0].url.params["step"] == "87"


def fails_with(error: Exception) -> Callable[[httpx2.Request], httpx2.Response]:
    def reply(request: httpx2.Request) -> httpx2.Response:
        raise error

    return reply


@pytest.mark.parametrize(
    ("answer", "kind", "sentence"),
    [
        (
            fails_with(httpx2.ConnectError("refused")),
            Unavailable,
            "No connection to Prometheus at 127.0.0.1:9090; check the address and that it is running.",
        ),
        (fails_with(httpx2.ReadTimeout("slow")), Unavailable, "did not answer within 15 s"),
        (fails_with(httpx2.ReadError("cut")), Unavailable, "could not be asked (ReadError)"),
        (httpx2.Response(502, text="<html>bad gateway</html>"), Unusable, "HTTP status 502"),
        (httpx2.Response(302, headers={"location": "http://elsewhere/"}), Unusable, "HTTP status 302"),
        (httpx2.Response(200, text="<html>login</html>"), Unusable, "did not answer as Prometheus does"),
        (httpx2.Response(200, text="[1]"), Unusable, "did not answer as Prometheus does"),
        (httpx2.Response(200, text="[" * 100_000), Unusable, "did not answer as Prometheus does"),
        (httpx2.Response(200, json={"status": "success"}), Unusable, "answered without a matrix"),
        (
            httpx2.Response(
                422,
                json={"status": "error", "errorType": "execution", "error": "too many\nsamples\u001b[2J."},
            ),
            Unusable,
            "Prometheus refused the query (execution): too many samples?[2J.",
        ),
        (
            httpx2.Response(200, json={"status": "success", "data": {"resultType": "vector", "result": []}}),
            Unusable,
            "answered without a matrix",
        ),
        (matrix({"metric": {}, "values": [[1, "x"]]}), Unusable, "no labels or no values"),
        (matrix({"values": [[1, "2"]]}), Unusable, "no labels or no values"),
        (httpx2.Response(200, content=b" " * (4 * 1024 * 1024 + 1)), Unusable, "over 4194304 bytes"),
    ],
)
async def test_what_goes_wrong_is_one_sentence_of_its_kind(
    answer: Any, kind: type[SourceError], sentence: str
) -> None:
    with pytest.raises(SourceError) as failure:
        await ask(answer)

    assert type(failure.value) is kind
    assert sentence in str(failure.value)
    assert "\n" not in str(failure.value)


async def test_the_deadline_holds_also_for_a_body_that_drips() -> None:
    async def drip() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    limits = MetricLimits(seconds=0.05)
    with pytest.raises(Unavailable, match=r"did not answer within 0\.05 s"):
        await ask(httpx2.Response(200, content=drip()), limits=limits)


async def test_a_password_in_the_address_is_in_no_message() -> None:
    with pytest.raises(Unavailable) as failure:
        await ask(fails_with(httpx2.ConnectError("x")), url="http://me:hunter2@prom.example:9090")

    assert "hunter2" not in str(failure.value)
    assert "prom.example:9090" in str(failure.value)


async def test_nothing_listening_is_said_in_one_sentence() -> None:
    made = config(url="http://127.0.0.1:1")
    async with prometheus_client(made) as client:
        with pytest.raises(Unavailable, match=r"No connection to Prometheus at 127\.0\.0\.1:1;"):
            await PrometheusMetrics(made, client).query_range("error_rate", start=START, end=END)


async def test_values_that_are_no_numbers_are_left_out_and_counted() -> None:
    said = await ask(matrix(one("payment", "NaN", "+Inf", "0.5")))

    series = said["series"][0]
    assert series["points"] == [[T0 + 120, 0.5]]
    assert series["not_numbers"] == 2
    json.dumps(said, allow_nan=False)


async def test_a_series_without_numbers_has_an_empty_summary() -> None:
    said = await ask(matrix(one("payment", "NaN")))

    assert said["series"][0]["summary"] == {
        "min": None, "max": None, "max_at": None, "median": None, "last": None,
    }  # fmt: skip


async def test_warnings_are_kept() -> None:
    said = await ask(matrix(warnings=["no data for a while"], infos=["metric might not be a counter"]))

    assert said["warnings"] == ["no data for a while", "metric might not be a counter"]


async def test_more_series_or_points_than_allowed_are_refused_with_what_to_do() -> None:
    many = matrix(*(one(f"payment{i}", "1") for i in range(3)))
    with pytest.raises(Refused, match="3 series and 2 are allowed; name fewer services"):
        await ask(many, limits=MetricLimits(series=2))

    long = matrix(one("payment", *["1"] * 70), one("checkout", *["1"] * 70))
    with pytest.raises(Refused, match="140 points and 130 are allowed"):
        await ask(long, limits=MetricLimits(points=130))


async def test_an_instant_answer_has_one_point_a_series() -> None:
    seen: list[httpx2.Request] = []

    def reply(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        result = [{"metric": {"service": "payment"}, "value": [T0, "0.08"]}]
        return httpx2.Response(
            200, json={"status": "success", "data": {"resultType": "vector", "result": result}}
        )

    made = config()
    async with prometheus_client(made, transport=httpx2.MockTransport(reply)) as client:
        said = await PrometheusMetrics(made, client).query_instant("error_rate", ["payment"], at=START)

    assert seen[0].url.path == "/api/v1/query"
    assert seen[0].url.params["query"] == 'last_over_time(error_rate{service=~"payment"}[300s])'
    assert seen[0].url.params["time"] == "1773478800.0"
    assert said["series"][0]["points"] == [[T0, 0.08]]
    assert said["step"] is None
    assert said["start"] == said["end"] == START


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"metrics": (MetricRule(name="a{b"),)}, "'a{b' is no Prometheus metric name"),
        ({"metrics": (MetricRule(name="rate", query="up"),)}, "has no $selector"),
        ({"known": ('x"',)}, "cannot be a service name"),
        ({"service_label": "a-b"}, "'a-b' is no label name"),
    ],
)
async def test_a_mistake_in_the_configuration_is_said_when_it_is_read(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Refused) as refusal:
        await ask(matrix(), **changes)

    assert sentence in str(refusal.value)


async def test_an_operator_who_gives_only_an_address_gets_the_metrics_whose_names_say_what_they_are() -> None:
    def reply(request: httpx2.Request) -> httpx2.Response:
        lists = {
            "/api/v1/label/__name__/values": ["up", "http_error_ratio", "pod_server_latency_p90_seconds", 7],
            "/api/v1/label/service/values": ["payment", "", "bad name"],
        }
        return httpx2.Response(200, json={"status": "success", "data": lists[request.url.path]})

    transport = httpx2.MockTransport(reply)
    async with httpx2.AsyncClient(transport=transport) as client:
        found = await discover(client, "http://127.0.0.1:9090")

    assert [(rule.name, rule.kind, rule.unit) for rule in found.metrics] == [
        ("http_error_ratio", "errors", "ratio"),
        ("pod_server_latency_p90_seconds", "latency", "s"),
    ]
    assert found.services == ("payment",)


def server(names: Sequence[str], labels: dict[str, list[str]]) -> httpx2.MockTransport:
    """A server that lists these names, one service, and for a counter these labels."""

    def reply(request: httpx2.Request) -> httpx2.Response:
        lists = {"/api/v1/label/__name__/values": list(names), "/api/v1/label/app/values": ["payment"]}
        found = lists.get(request.url.path, labels.get(request.url.params.get("match[]", "")))
        return httpx2.Response(200, json={"status": "success", "data": found})

    return httpx2.MockTransport(reply)


async def discovered(names: Sequence[str], **labels: list[str]) -> dict[str, str | None]:
    """The queries that are made of a server's list, by the name they are asked for with."""
    async with httpx2.AsyncClient(transport=server(names, labels)) as client:
        found = await discover(client, "http://127.0.0.1:9090", service_label="app")
    return {rule.name: rule.query for rule in found.metrics}


async def test_a_gauge_is_read_as_the_worst_instance_of_each_service() -> None:
    assert await discovered(["queue_saturation_ratio"]) == {
        "queue_saturation_ratio": "max by (app) (last_over_time(queue_saturation_ratio{$selector}[$step]))"
    }


async def test_a_histogram_of_latency_is_read_as_its_90th_percentile_and_its_parts_are_left_out() -> None:
    names = ["rpc_duration_seconds_bucket", "rpc_duration_seconds_count", "rpc_duration_seconds_sum"]

    assert await discovered([*names, "message_size_bytes_bucket"]) == {
        "rpc_duration_seconds_p90": "histogram_quantile(0.9, "
        "sum by (app, le) (rate(rpc_duration_seconds_bucket{$selector}[5m])))"
    }


async def test_a_counter_of_requests_with_a_status_is_read_as_the_share_that_failed() -> None:
    names = ["http_requests_total", "jobs_requests_total", "http_client_requests_total", "bytes_total"]
    labels = {
        "http_requests_total": ["app", "method", "status_code"],
        "jobs_requests_total": ["app"],
        "http_client_requests_total": ["app", "code"],
    }

    found = await discovered(names, **labels)

    everything = "sum by (app) (rate(http_requests_total{$selector}[5m]))"
    failed = 'sum by (app) (rate(http_requests_total{$selector,status_code=~"5.."}[5m]))'
    assert found == {"http_requests_error_ratio": f"({failed} or {everything} * 0) / {everything}"}


async def test_of_very_many_counters_only_a_few_are_asked_about() -> None:
    names = [f"shop_{number:02}_requests_total" for number in range(40)]

    found = await discovered(names, **{name: ["code"] for name in names})

    assert list(found) == [f"shop_{number:02}_requests_error_ratio" for number in range(8)]


async def test_a_server_with_nothing_to_ask_for_is_said_so() -> None:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, json={"status": "success", "data": []}))
    async with httpx2.AsyncClient(transport=transport) as client:
        with pytest.raises(Unusable, match="lists no metric or no 'service' label to ask for"):
            await discover(client, "http://127.0.0.1:9090")


@pytest.mark.parametrize(
    ("name", "kind", "unit"),
    [
        ("pod_cpu_limit_usage_percent", "saturation", "percent"),
        ("request_duration_milliseconds", "latency", "ms"),
        ("error_rate", "errors", "ratio"),
        ("http_errors_total", "other", ""),  # a counter: its value is no share of anything
        ("pod_memory_mebibytes", "other", ""),
        ("node_cpu_seconds", "other", "s"),
        ("http_request_duration_seconds_count", "other", "s"),  # grows with every request
        ("http_request_duration_seconds_sum", "other", "s"),
        ("http_request_errors_ratio_total", "other", "ratio"),
        ("pod_client_latency_p90_seconds", "other", "s"),  # of the calls it makes
        ("envoy_upstream_latency_ms", "other", "ms"),
        ("envoy_downstream_latency_ms", "latency", "ms"),
    ],
)
def test_a_metrics_name_says_what_it_measures(name: str, kind: str, unit: str) -> None:
    rule = described_metric(name)

    assert (rule.kind, rule.unit) == (kind, unit)


@pytest.mark.needs_data
async def test_every_recorded_answer_is_a_result_or_one_sentence(shared_data: Path) -> None:
    path = shared_data / "incident" / "prometheus-api" / "exchanges.jsonl"
    exchanges = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    results: dict[str, dict[str, Any]] = {}
    sentences: dict[str, str] = {}
    for exchange in exchanges:
        recorded = exchange["response"]
        content = recorded["body"] if "body" in recorded else recorded["body_text"]
        body = content if isinstance(content, str) else json.dumps(content)
        answer = httpx2.Response(recorded["status"], text=body)
        try:
            results[exchange["name"]] = await ask(answer)
        except SourceError as failure:
            sentences[exchange["name"]] = str(failure)

    assert len(results) + len(sentences) == len(exchanges) >= 25
    series = results["range-matrix"]["series"]
    assert [one["service"] for one in series][:2] == ["adservice", "cartservice"]
    assert series[1]["summary"]["max"] == 0.476111
    assert results["range-empty"]["series"] == []
    assert "exceeded maximum resolution" in sentences["range-too-many-points"]
    assert "query timed out" in sentences["instant-timeout"]
    assert "HTTP status 404" in sentences["not-found"]
    assert not any("\n" in sentence for sentence in sentences.values())
