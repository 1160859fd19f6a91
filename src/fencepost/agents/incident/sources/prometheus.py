"""Metrics from a Prometheus server, over its HTTP API.

Rules of this file:
- The query is built here from an allow-listed metric and services; a model's text is never in it.
- One GET a question, no redirects, one deadline, and a body that is given up once it is too long.
- Messages name host and port, never a user or password of the address.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec

from fencepost.agents.incident.sources.errors import Refused, Unavailable, Unusable
from fencepost.agents.incident.sources.metrics import (
    MetricLimits,
    MetricRule,
    allowed_metric,
    allowed_services,
    chosen_step,
    described_metric,
    is_outward,
    range_answer,
    series_answer,
)
from fencepost.agents.incident.sources.window import Window, parse_moment, parse_window, shown

SERVER_WORDS_SHOWN = 300  # of an error or a warning of the server's
WARNINGS_SHOWN = 5
LABELS_SHOWN = 20  # of a series; more are cut, the service label is always kept
SERVICE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
SELECTOR = "$selector"
STEP = "$step"  # stands for the step of a range, and for the time an instant looks back
LOOKBACK_SECONDS = 300.0  # how far back the newest sample of an instant may be: the server's own usual
# Labels of a counter of requests that tell how they ended, as a number in which 5xx is the server's failure.
STATUS_LABELS = ("code", "status", "status_code", "http_status_code", "http_response_status_code")
REQUESTS_TOTAL = re.compile(r"[a-zA-Z0-9_:]*requests?_total")
COUNTERS_ASKED = 8  # one request each, before the first question; more are an operator's to configure
RATE_WINDOW = "5m"  # four scrapes of a minute and one to spare; the usual of alert rules


class PrometheusConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which server, what may be asked of it, and how much."""

    url: str
    metrics: tuple[MetricRule, ...]
    services: tuple[str, ...]
    service_label: str = "service"
    limits: MetricLimits = MetricLimits()


@asynccontextmanager
async def prometheus_client(
    config: PrometheusConfig, *, transport: httpx2.AsyncBaseTransport | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client for the configured server, closed on leaving; redirects are not followed."""
    async with httpx2.AsyncClient(
        timeout=config.limits.seconds, follow_redirects=False, transport=transport
    ) as client:
        yield client


class PrometheusMetrics:
    """The metrics of one Prometheus server."""

    def __init__(self, config: PrometheusConfig, client: httpx2.AsyncClient) -> None:
        _check(config)
        self._config = config
        self._client = client

    @property
    def metrics(self) -> tuple[MetricRule, ...]:
        """What may be asked for."""
        return self._config.metrics

    @property
    def services(self) -> tuple[str, ...]:
        """Whose values may be asked for."""
        return self._config.services

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
        limits = self._config.limits
        rule = allowed_metric(metric, self.metrics)
        wanted = allowed_services(services, self.services)
        window = parse_window(start, end, seconds_max=limits.window_seconds)
        step = chosen_step(window, step_seconds, series=len(wanted), limits=limits)
        body = await self._get(
            "query_range",
            {
                "query": self._query(rule, wanted, step),
                "start": window.start,
                "end": window.end,
                "step": step,
            },
        )
        series = self._series(body, "matrix")
        return _with_warnings(range_answer(rule, wanted, series, window=window, step=step), body)

    async def query_instant(self, metric: str, services: Sequence[str] = (), *, at: str) -> dict[str, Any]:
        """The values of a metric at a moment. Raises `SourceError`."""
        rule = allowed_metric(metric, self.metrics)
        wanted = allowed_services(services, self.services)
        moment = parse_moment(at, "at")
        body = await self._get(
            "query", {"query": self._query(rule, wanted, LOOKBACK_SECONDS), "time": moment}
        )
        series = self._series(body, "vector")
        answer = range_answer(rule, wanted, series, window=Window(moment, moment), step=None)
        return _with_warnings(answer, body)

    def _query(self, rule: MetricRule, services: Sequence[str], step: float) -> str:
        names = "|".join(re.escape(name).replace("\\", "\\\\") for name in services)
        selector = f'{self._config.service_label}=~"{names}"'
        query = rule.query or plain_query(rule.name)
        return query.replace(SELECTOR, selector).replace(STEP, f"{math.ceil(step)}s")

    async def _get(self, path: str, parameters: Mapping[str, str | float]) -> dict[str, Any]:
        return await get_api(
            self._client, self._config.url, f"api/v1/{path}", parameters, limits=self._config.limits
        )

    def _series(self, body: Mapping[str, Any], expected: str) -> list[dict[str, Any]]:
        data = body.get("data")
        result = data.get("result") if isinstance(data, dict) else None
        if not isinstance(data, dict) or data.get("resultType") != expected or not isinstance(result, list):
            raise Unusable(f"Prometheus answered without a {expected}; check the configured query.")
        limits = self._config.limits
        if len(result) > limits.series:
            raise Refused(
                f"The answer has {len(result)} series and {limits.series} are allowed; name fewer services."
            )
        series = [_one_series(one, expected, self._config.service_label) for one in result]
        points = sum(len(one["points"]) for one in series)
        if points > limits.points:
            raise Refused(
                f"The answer has {points} points and {limits.points} are allowed; "
                "ask for fewer services, a shorter window or a larger step."
            )
        return sorted(series, key=lambda one: sorted(one["labels"].items()))


async def discover(
    client: httpx2.AsyncClient, url: str, *, service_label: str = "service"
) -> PrometheusConfig:
    """A configuration from what the server itself lists: every metric whose name says what it measures.

    For an operator who gives an address and nothing else; a model has no way to call it. A gauge or summary
    is read as its worst instance of each service, a histogram of latency as its 90th percentile (`…_p90`),
    a counter of requests with a status as the share of 5xx (`…_error_ratio`).
    """
    check_label(service_label)
    limits = MetricLimits()
    listed = _texts(await get_api(client, url, "api/v1/label/__name__/values", {}, limits=limits))
    services = await get_api(client, url, f"api/v1/label/{service_label}/values", {}, limits=limits)
    names = [name for name in listed if METRIC_NAME.fullmatch(name)]
    rules = [rule for name in names if (rule := _described(name, service_label)) is not None]
    for name in [name for name in names if REQUESTS_TOTAL.fullmatch(name) and not is_outward(name)][
        :COUNTERS_ASKED
    ]:
        labels = _texts(await get_api(client, url, "api/v1/labels", {"match[]": name}, limits=limits))
        rules += [_error_ratio(name, label, service_label) for label in STATUS_LABELS if label in labels][:1]
    found = PrometheusConfig(
        url=url,
        metrics=tuple(sorted(rules, key=lambda rule: rule.name)),
        services=tuple(name for name in _texts(services) if SERVICE_NAME.fullmatch(name)),
        service_label=service_label,
    )
    if not found.metrics or not found.services:
        raise Unusable(
            f"Prometheus at {place(url)} lists no metric or no {service_label!r} label to ask for; "
            "name the metrics and services in the agent's configuration."
        )
    return found


def _described(name: str, service_label: str) -> MetricRule | None:
    """The rule of a listed name, or None when it does not say what it measures."""
    base = name.removesuffix("_bucket")
    rule = described_metric(base)
    if rule.kind == "other" or (base != name and rule.kind != "latency"):
        return None
    if base != name:
        rate = f"sum by ({service_label}, le) (rate({name}{{{SELECTOR}}}[{RATE_WINDOW}]))"
        return msgspec.structs.replace(rule, name=f"{base}_p90", query=f"histogram_quantile(0.9, {rate})")
    return msgspec.structs.replace(rule, query=f"max by ({service_label}) ({plain_query(name)})")


def plain_query(name: str) -> str:
    """The newest sample of each step, and nothing where there was none.

    A bare selector repeats a sample for five minutes: one odd sample would look like a state that lasts.
    """
    return f"last_over_time({name}{{{SELECTOR}}}[{STEP}])"


def _error_ratio(name: str, status: str, service_label: str) -> MetricRule:
    """The share of requests that ended with 5xx; of a service that never failed it is 0, not absent."""
    by = f"sum by ({service_label})"
    all_requests = f"{by} (rate({name}{{{SELECTOR}}}[{RATE_WINDOW}]))"
    failed = f'{by} (rate({name}{{{SELECTOR},{status}=~"5.."}}[{RATE_WINDOW}]))'
    return MetricRule(
        name=f"{name.removesuffix('_total')}_error_ratio",
        kind="errors",
        unit="ratio",
        query=f"({failed} or {all_requests} * 0) / {all_requests}",
    )


async def get_api(
    client: httpx2.AsyncClient,
    url: str,
    path: str,
    parameters: Mapping[str, str | float],
    *,
    limits: MetricLimits,
) -> dict[str, Any]:
    """The body of a successful answer of the API. Raises `SourceError` with one sentence."""
    where = place(url)
    try:
        async with asyncio.timeout(limits.seconds):
            status, raw = await _read(client, f"{url.rstrip('/')}/{path}", parameters, limits.response_bytes)
    except (TimeoutError, httpx2.TimeoutException):
        raise Unavailable(
            f"Prometheus at {where} did not answer within {limits.seconds:g} s; ask for a shorter window."
        ) from None
    except _TooLong:
        raise Unusable(
            f"Prometheus at {where} answered with over {limits.response_bytes} bytes; narrow the request."
        ) from None
    except httpx2.ConnectError:
        raise Unavailable(
            f"No connection to Prometheus at {where}; check the address and that it is running."
        ) from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as failure:
        raise Unavailable(
            f"Prometheus at {where} could not be asked ({type(failure).__name__}); check the address."
        ) from None
    return _body(status, raw, where)


def check_label(name: str) -> None:
    """Raise `Refused` unless a label can have this name."""
    if not LABEL_NAME.fullmatch(name):
        raise Refused(f"{shown(name)} is no label name; correct it in the configuration.")


def check_address(url: str) -> None:
    """Raise `Refused` unless this can be the address of a server."""
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        parsed = httpx2.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise Refused(f"The address of Prometheus must be like http://127.0.0.1:9090, got {place(url)}.")


def place(url: str) -> str:
    """Host and port of an address, without user, password and path."""
    try:
        parsed = httpx2.URL(url)
        return parsed.netloc.decode("ascii", "replace") or shown(url)
    except httpx2.InvalidURL:
        return "an address that is no URL"


class _TooLong(Exception):
    """The body passed its limit."""


async def _read(
    client: httpx2.AsyncClient, url: str, parameters: Mapping[str, str | float], bytes_max: int
) -> tuple[int, bytes]:
    async with client.stream("GET", url, params=dict(parameters)) as response:
        body = bytearray()
        async for part in response.aiter_bytes():
            body += part
            if len(body) > bytes_max:
                raise _TooLong
        return response.status_code, bytes(body)


def _body(status: int, raw: bytes, where: str) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, dict) and body.get("status") == "error":
        words = shown_words(body.get("error"))
        raise Unusable(f"Prometheus refused the query ({shown_words(body.get('errorType'))}): {words}.")
    if status != 200:
        raise Unusable(
            f"{where} answered with HTTP status {status}; check that this is the address of Prometheus."
        )
    if not isinstance(body, dict) or body.get("status") != "success":
        raise Unusable(
            f"{where} did not answer as Prometheus does; check that this is the address of Prometheus."
        )
    return body


def shown_words(value: object) -> str:
    """Words of the server's, on one line, cut."""
    text = " ".join(str(value).split())[:SERVER_WORDS_SHOWN].rstrip(".")
    return "".join(c if c.isprintable() else "?" for c in text)


def _with_warnings(answer: dict[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    given = [*_listed(body.get("warnings")), *_listed(body.get("infos"))]
    if given:
        answer["warnings"] = [shown_words(words) for words in given[:WARNINGS_SHOWN]]
    return answer


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(body: Mapping[str, Any]) -> list[str]:
    return [name for name in _listed(body.get("data")) if isinstance(name, str)]


def _one_series(one: object, expected: str, service_label: str) -> dict[str, Any]:
    try:
        assert isinstance(one, dict)
        pairs = one["values"] if expected == "matrix" else [one["value"]]
        points = [(float(at), float(value)) for at, value in pairs]
        labels = {str(k): str(v)[:SERVER_WORDS_SHOWN] for k, v in one["metric"].items() if k != "__name__"}
    except (AssertionError, KeyError, TypeError, ValueError, AttributeError):
        raise Unusable("Prometheus answered with a series that has no labels or no values.") from None
    kept = sorted(labels, key=lambda name: (name != service_label, name))[:LABELS_SHOWN]
    service = labels.get(service_label, "")
    return series_answer(service, {name: labels[name] for name in kept}, points)


def _check(config: PrometheusConfig) -> None:
    """The configuration is the operator's; a mistake in it is said at once and by name."""
    for rule in config.metrics:
        if rule.query is None and not METRIC_NAME.fullmatch(rule.name):
            raise Refused(
                f"{shown(rule.name)} is no Prometheus metric name; correct it in the configuration."
            )
        if rule.query is not None and SELECTOR not in rule.query:
            raise Refused(
                f"The query of {shown(rule.name)} has no {SELECTOR}; put it where labels are selected."
            )
    for name in config.services:
        if not SERVICE_NAME.fullmatch(name):
            raise Refused(f"{shown(name)} cannot be a service name; correct it in the configuration.")
    check_label(config.service_label)
