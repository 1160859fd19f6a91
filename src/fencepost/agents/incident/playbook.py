"""A brain that needs no key: the procedure of `procedure.py` behind the same `Model` as any language model.

It keeps nothing between calls: what it knows is read from the transcript each time, so a task that is resumed on
another machine goes on the same way. It asks once for a rollback where one is plausible; whether that may run is
for the rules and for people.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
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
from fencepost.agents.incident.procedure import next_query
from fencepost.agents.incident.sources.errors import SourceError
from fencepost.agents.incident.sources.metrics import MetricRule
from fencepost.agents.incident.sources.window import read_moment

# A time in a prompt, as in an alert.
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)")
# Without a second time in the prompt, data after the alert is looked at for this long. Seconds.
AFTER_ALERT = 7 * 60.0
# A procedure costs nothing; its tokens are counted so that budgets show something.
BYTES_PER_TOKEN = 4
WRITE_TOOL = "rollback"


class Known(Protocol):
    """What the playbook must know of the metrics before it asks for any."""

    @property
    def metrics(self) -> tuple[MetricRule, ...]: ...


class Playbook:
    """Walks the procedure through tool calls, then answers with citations.

    The alert's time is the first time in the prompt, or now; data are looked at until the second one.
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
        ready = getattr(self._metrics, "ready", None)
        if ready is not None:
            try:
                await ready()
            except SourceError as why:
                raise ModelFailed(str(why), kind="source") from None
        brief = self._brief(request)
        observations = _observations(request)
        asked = _next(brief, observations)
        if isinstance(asked, Conclusion):
            back = asked.rollback
            can = any(tool.name == WRITE_TOOL for tool in request.tools)
            if back is None or not can or any(o.tool == WRITE_TOOL for o in observations):
                return _answer(asked, request)
            asked = [Query(tool="rollback", arguments={"service": back.service, "release": back.release})]
        calls = tuple(
            ToolCall(f"playbook-{request.step}-{i}", query.tool, json.dumps(query.arguments))
            for i, query in enumerate(asked)
        )
        return Reply("", calls, Finish.TOOL_CALLS, usage=_usage(request, calls))

    def _brief(self, request: ModelRequest) -> Brief:
        prompt = next((m.text for m in request.messages if isinstance(m, UserMessage)), "")
        moments = [at for found in MOMENT.findall(prompt) if (at := read_moment(found)) is not None]
        alert_at = moments[0] if moments else self._now() - AFTER_ALERT
        until = moments[1] if len(moments) > 1 else min(alert_at + AFTER_ALERT, max(self._now(), alert_at + 60))
        return Brief(alert_at=alert_at, until=until, metrics=self._metrics.metrics, graph=self._graph)


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
        known.append(Observation(evidence="", tool=asked.tool, arguments=asked.arguments, failure="not asked yet"))


def _observations(request: ModelRequest) -> list[Observation]:
    """What the transcript says was asked and what came of it."""
    asked: dict[str, ToolCall] = {}
    found: list[Observation] = []
    for message in request.messages:
        if isinstance(message, AssistantMessage):
            asked.update((call.id, call) for call in message.calls)
        elif isinstance(message, ToolMessage) and (call := asked.get(message.call_id)) is not None:
            if call.name in ("query_metrics", "search_logs", "list_releases", WRITE_TOOL):
                found.append(_observation(call, message))
    return found


def _observation(call: ToolCall, message: ToolMessage) -> Observation:
    arguments = json.loads(call.arguments or "{}")
    result = None if message.failed else _document(message.content)
    return Observation(
        evidence=message.evidence_id,
        tool=call.name,  # type: ignore[arg-type]  # one of the four names, checked by the caller
        arguments=arguments,
        result=result,
        failure=message.content if result is None else None,
    )


def _document(content: str) -> dict[str, Any] | None:
    try:
        document = json.loads(content)
    except ValueError:  # cut for the model: it cannot be pointed into
        return None
    return document if isinstance(document, dict) else None


def _answer(conclusion: Conclusion, request: ModelRequest) -> Reply:
    claims = [
        {"text": statement.text, "evidence_id": claim.evidence, "pointer": claim.pointer, "value": claim.value}
        for statement in conclusion.observations
        for claim in statement.claims
    ]
    cited = list(dict.fromkeys(claim["evidence_id"] for claim in claims))
    said = {"summary": conclusion.summary, "evidence_ids": cited, "claims": claims}
    calls = (ToolCall(f"playbook-{request.step}-answer", "answer", json.dumps(said)),)
    return Reply("", calls, Finish.TOOL_CALLS, usage=_usage(request, calls))


def _usage(request: ModelRequest, calls: Sequence[ToolCall]) -> Usage:
    """What a language model of the same words would have used, near enough."""
    seen = sum(len(m.content if isinstance(m, ToolMessage) else m.text) for m in request.messages)
    said = sum(len(call.arguments) for call in calls)
    return Usage(input_tokens=seen // BYTES_PER_TOKEN, output_tokens=said // BYTES_PER_TOKEN)
