"""A brain that needs no key: the procedure of `procedure.py` behind the same `Model` as any language model.

Rules of this file:
- It keeps nothing between calls. What it knows is read from the transcript each time, the time of the alert
  included, so that a task resumed on another day or another machine goes on the same way.
- It asks once for a rollback where one is plausible; whether that may run is for the rules and for people.
- Results are data: which call comes next depends on their numbers and times alone.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from fencepost import (
    AssistantMessage,
    Finish,
    ModelFailed,
    ModelProfile,
    ModelRequest,
    Reply,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from fencepost.agents.incident.findings import Brief, Conclusion, Observation, Query
from fencepost.agents.incident.procedure import PAST_SECONDS, next_query
from fencepost.agents.incident.sources.errors import Refused, SourceError, Unavailable
from fencepost.agents.incident.sources.metrics import MetricLimits, MetricRule
from fencepost.agents.incident.sources.window import parse_moment

# A time in a prompt, as in an alert.
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)")
# What somebody meant as a time, however it is written.
TIME_LIKE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?:[^\s,;]*[0-9A-Za-z])?")
# Without a second time in the prompt, data after the alert is looked at for this long: two minutes for the
# fault to show and some to see where it goes. Seconds.
AFTER_ALERT = 7 * 60.0
# At the least, so that an alert of this very minute has a window at all. Seconds.
AFTER_ALERT_LEAST = 60.0
# What a metrics source still takes as one window, the past included. Seconds.
AFTER_ALERT_MOST = MetricLimits().window_seconds - PAST_SECONDS
# A procedure costs nothing; its tokens are counted so that budgets show something.
BYTES_PER_TOKEN = 4
READING_TOOLS = ("query_metrics", "search_logs", "list_releases")
WRITE_TOOL = "rollback"


class Known(Protocol):
    """What the playbook must know of the metrics before it asks for any."""

    @property
    def metrics(self) -> tuple[MetricRule, ...]:
        """What may be asked for, once `ready` has returned."""
        ...

    async def ready(self) -> None:
        """What may be asked for is known, or `SourceError` says why not."""
        ...


class Playbook:
    """Walks the procedure through tool calls, then answers with citations.

    The alert's time is the first time in the prompt, or the present where there is none; data are looked at
    until the first later time in the prompt, or for seven minutes. A first time that is not understood ends the
    task: to take the present for it would be to investigate another hour than was asked about.
    """

    profile = ModelProfile("playbook", bytes_per_token=BYTES_PER_TOKEN, input_nano=0, output_nano=0)

    def __init__(
        self,
        metrics: Known,
        *,
        graph: dict[str, tuple[str, ...]] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._metrics, self._graph, self._now = metrics, graph or {}, now

    async def reply(self, request: ModelRequest, sink: object, /) -> Reply:
        """The next calls of the procedure, or its conclusion."""
        try:
            await self._metrics.ready()
        except SourceError as why:
            waits = isinstance(why, Unavailable)
            raise ModelFailed(str(why), kind="connect" if waits else "error", retriable=waits) from None
        observations = _observations(request)
        asked = _next(self._brief(request, observations), observations)
        if isinstance(asked, Conclusion):
            if not _asks_for_rollback(asked, observations, request):
                return _answer(asked, observations, request)
            assert asked.rollback is not None, "what is asked for is what was concluded"
            wanted = {"service": asked.rollback.service, "release": asked.rollback.release}
            asked = [Query(tool="rollback", arguments=wanted)]
        calls = tuple(
            ToolCall(f"playbook-{request.step}-{i}", query.tool, json.dumps(query.arguments))
            for i, query in enumerate(asked)
        )
        return Reply("", calls, Finish.TOOL_CALLS, usage=_usage(request, calls))

    def _brief(self, request: ModelRequest, observations: Sequence[Observation]) -> Brief:
        prompt = next((m.text for m in request.messages if isinstance(m, UserMessage)), "")
        moments = _moments(prompt)
        known = _window_asked_for(observations)
        if moments:
            alert_at = moments[0]
            until = next((at for at in moments if at > alert_at), None)
        elif known is not None:
            alert_at, until = known
        else:
            alert_at, until = float(int(self._now() - AFTER_ALERT)), None
        if until is None:
            until = alert_at + AFTER_ALERT
            until = min(until, max(float(int(self._now())), alert_at + AFTER_ALERT_LEAST))
        until = min(until if known is None else known[1], alert_at + AFTER_ALERT_MOST)
        return Brief(
            alert_at=alert_at,
            until=until,
            metrics=self._metrics.metrics,
            graph=self._graph,
            present=not moments,
        )


def _moments(prompt: str) -> list[float]:
    """The times in a prompt; ModelFailed when none is understood, or the first has no form of a moment."""
    meant = TIME_LIKE.findall(prompt)
    moments = [at for found in MOMENT.findall(prompt) if (at := _moment(found)) is not None]
    if meant and not (moments and MOMENT.match(meant[0])):
        try:
            parse_moment(meant[0], "In the prompt, the time")
        except Refused as why:
            raise ModelFailed(str(why), kind="error", retriable=False) from None
    return moments


def _moment(text: str) -> float | None:
    try:
        return parse_moment(text, "a time in the prompt")
    except Refused:
        return None


def _window_asked_for(observations: Iterable[Observation]) -> tuple[float, float] | None:
    """The alert's time and the end of the data, as the first question about metrics had them."""
    for one in observations:
        if one.tool == "query_metrics":
            start, end = (_moment(str(one.arguments.get(name))) for name in ("start", "end"))
            if start is not None and end is not None:
                return start + PAST_SECONDS, end
    return None


def _next(brief: Brief, observations: Sequence[Observation]) -> list[Query] | Conclusion:
    """All metrics at once, everything after them one by one."""
    queries: list[Query] = []
    known = list(observations)
    while True:
        asked = next_query(brief, known)
        if isinstance(asked, Conclusion):
            return queries or asked
        if queries and asked.tool != "query_metrics":
            return queries
        queries.append(asked)
        if asked.tool != "query_metrics":
            return queries
        known.append(
            Observation(evidence="", tool=asked.tool, arguments=asked.arguments, failure="not asked yet")
        )


def _asks_for_rollback(
    conclusion: Conclusion, observations: Iterable[Observation], request: ModelRequest
) -> bool:
    """One is plausible, there is a tool for it, and it was not asked for yet."""
    can = any(tool.name == WRITE_TOOL for tool in request.tools)
    return conclusion.rollback is not None and can and not any(o.tool == WRITE_TOOL for o in observations)


# -- from and to the transcript ---------------------------------------------------------------------------


def _observations(request: ModelRequest) -> list[Observation]:
    """What the transcript says was asked and what came of it."""
    asked: dict[str, ToolCall] = {}
    found: list[Observation] = []
    for message in request.messages:
        if isinstance(message, AssistantMessage):
            asked.update((call.id, call) for call in message.calls)
        elif isinstance(message, ToolMessage):
            call = asked.get(message.call_id)
            if call is not None and call.name in (*READING_TOOLS, WRITE_TOOL):
                found.append(_observation(call, message))
    return found


def _observation(call: ToolCall, message: ToolMessage) -> Observation:
    arguments = json.loads(call.arguments or "{}")
    # A result without an evidence id is a person's word about a lost call: it happened, and cannot be cited.
    result = _document(message.content) if message.evidence_id and not message.failed else None
    unread = message.failed or (message.evidence_id and result is None)
    return Observation(
        evidence=message.evidence_id,
        tool=call.name,  # type: ignore[arg-type]  # one of the four names, checked by the caller
        arguments=arguments,
        result=result,
        failure=message.content if unread else None,
    )


def _document(content: str) -> dict[str, Any] | None:
    try:
        document = json.loads(content)
    except ValueError:  # cut for the model: it cannot be pointed into
        return None
    return document if isinstance(document, dict) else None


def _answer(conclusion: Conclusion, observations: Iterable[Observation], request: ModelRequest) -> Reply:
    claims = [
        {
            "text": statement.text,
            "evidence_id": claim.evidence,
            "pointer": claim.pointer,
            "value": claim.value,
        }
        for statement in conclusion.observations
        for claim in statement.claims
    ]
    if not claims:
        failures = dict.fromkeys(one.failure for one in observations if one.failure)
        raise ModelFailed("nothing was obtained that an answer could cite: " + " ".join(failures))
    cited = list(dict.fromkeys(claim["evidence_id"] for claim in claims))
    said = {"summary": conclusion.summary, "evidence_ids": cited, "claims": claims}
    calls = (ToolCall(f"playbook-{request.step}-answer", "answer", json.dumps(said)),)
    return Reply("", calls, Finish.TOOL_CALLS, usage=_usage(request, calls))


def _usage(request: ModelRequest, calls: Sequence[ToolCall]) -> Usage:
    """What a language model of the same words would have used, near enough."""
    seen = sum(len(m.content if isinstance(m, ToolMessage) else m.text) for m in request.messages)
    said = sum(len(call.arguments) for call in calls)
    return Usage(input_tokens=seen // BYTES_PER_TOKEN, output_tokens=said // BYTES_PER_TOKEN)
