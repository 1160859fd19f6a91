"""The playbook as a model: the alert's time, sources of every kind, and each way a rollback can end."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fencepost import (
    Agent,
    MemoryStore,
    OutcomeUnknown,
    Result,
    Rules,
    StopReason,
    TaskState,
    Tool,
    ToolFailed,
    resume_task,
    run_task,
    tool,
)
from fencepost.agents.incident import data
from fencepost.agents.incident.agent import DEMO_PROMPT, Sources, build
from fencepost.agents.incident.playbook import AFTER_ALERT, Playbook
from fencepost.agents.incident.sources.bundled import BundledMetrics
from fencepost.agents.incident.sources.errors import Unavailable, Unusable
from fencepost.agents.incident.sources.logs import LogFiles, LogsConfig
from fencepost.agents.incident.sources.metrics import MetricRule
from fencepost.agents.incident.sources.releases import ChangeRecord, ChangeRecordConfig
from fencepost.agents.incident.sources.window import parse_moment
from fencepost.core.entries import AttemptFailed
from fencepost.service.tasks import decide_approval, resolve_outcome
from fencepost.testing import FakeClock
from tests.agents.incident.investigating import asked, bodies, check_answer, ended, told

ALERT = parse_moment(data.ALERT_AT, "alert")
DAY = 86400.0
TASK = "task-incident"


def rollback_that(act: Callable[[], dict[str, Any]]) -> Tool:
    @tool(effect="write")
    async def rollback(service: str, release: str) -> dict[str, Any]:
        """Roll back."""
        return act()

    return rollback


def agent(
    *,
    now: float = ALERT + AFTER_ALERT,
    metrics: Any = None,
    changes: Path = data.CHANGES,
    logs: Path = data.LOGS,
    rollback: Tool | None = None,
    rules: Rules | None = None,
) -> Agent:
    source = metrics or BundledMetrics(data.METRICS)
    calls = json.loads(data.CALLS.read_text(encoding="utf-8"))["calls"]
    graph = {caller: tuple(called) for caller, called in calls.items()}
    sources = Sources(
        source,
        LogFiles(LogsConfig(path=str(logs))),
        ChangeRecord(ChangeRecordConfig(path=str(changes))),
        graph=graph,
    )
    model = Playbook(source, graph=graph, now=lambda: now)
    return build(sources, rules=rules, model=model, rollback=rollback)


def windows(result: Result) -> set[tuple[str, str]]:
    return {(a["start"], a["end"]) for name, a in asked(result) if name == "query_metrics"}


# -- the alert's time -------------------------------------------------------------------------------------


async def test_without_a_time_in_the_prompt_the_alert_is_the_present() -> None:
    result = await run_task(agent(), "payments fail")

    assert windows(result) == {("2026-03-14T09:05:00Z", "2026-03-14T10:12:00Z")}
    assert "release v2.4.1 came shortly before payment" in result.text
    assert "The prompt names no time, so the present was taken for that of the alert." in result.text


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        ("Alert at 2026-03-14T10:05:00: payments fail", "the time '2026-03-14T10:05:00' has no time zone"),
        (
            "Alert at 2026-03-14 10:05, until 2026-03-14T10:12:00Z",
            "the time '2026-03-14 10:05' has no time zone",
        ),
        ("Alert at 2026-13-45T10:05:00Z.", "the time '2026-13-45T10:05:00Z' is no time"),
    ],
)
async def test_a_time_that_is_not_understood_is_said_so_and_not_taken_for_the_present(
    prompt: str, sentence: str
) -> None:
    result = await run_task(agent(), prompt)

    assert (result.state, result.reason) == (TaskState.FAILED, StopReason.LLM_ERROR)
    (failed,) = [body for body in bodies(result) if isinstance(body, AttemptFailed)]
    assert f"In the prompt, {sentence}; write it like 2026-01-31T09:00:00Z." in failed.detail


async def test_a_task_that_waited_for_a_day_goes_on_with_the_hours_it_began_with() -> None:
    store = MemoryStore()
    rollback = rollback_that(lambda: {"exit_code": 0})
    (ask,) = (await run_task(agent(rollback=rollback), "payments fail", task=TASK, store=store)).asks

    await decide_approval(store, TASK, f"{ask.step}.{ask.position}", approve=True, by="local/lead")
    result = await resume_task(agent(rollback=rollback, now=ALERT + DAY), TASK, store=store)

    assert result.state is TaskState.SUCCEEDED
    assert "release v2.4.1 came shortly before payment" in result.text
    assert "its command ended with 0" in result.text
    assert len(windows(result)) == 1


@pytest.mark.parametrize(
    ("prompt", "window"),
    [
        ("at 2026-03-14T10:05:00Z, see until 2026-03-14T10:09:00Z", "10:09:00Z"),
        ("at 2026-03-14T10:05:00Z; a deploy was at 2026-03-14T09:58:20Z", "10:12:00Z"),
        ("at 2026-03-14T11:05:00+01:00", "10:12:00Z"),
        ("at 2026-03-14T10:05Z.", "10:12:00Z"),
        ("at 0001-01-01T00:00:00Z no clock was set; at 2026-03-14T10:05:00Z", "10:12:00Z"),
    ],
)
async def test_the_first_time_in_the_prompt_is_the_alert_and_a_later_one_the_end_of_the_data(
    prompt: str, window: str
) -> None:
    result = await run_task(agent(now=ALERT + DAY), prompt)

    assert windows(result) == {("2026-03-14T09:05:00Z", f"2026-03-14T{window}")}
    assert result.state is TaskState.SUCCEEDED


async def test_an_alert_of_this_minute_is_looked_at_for_a_minute() -> None:
    result = await run_task(agent(now=ALERT), "at 2026-03-14T10:05:00Z")

    assert windows(result) == {("2026-03-14T09:05:00Z", "2026-03-14T10:06:00Z")}


async def test_all_questions_of_a_task_end_where_the_first_one_did() -> None:
    clock = itertools.count(int(ALERT) + 90, 20)
    source = BundledMetrics(data.METRICS)
    made = dataclasses.replace(agent(), model=Playbook(source, now=lambda: next(clock)))

    result = await run_task(made, "at 2026-03-14T10:05:00Z")

    assert {arguments["end"] for _, arguments in asked(result)} == {"2026-03-14T10:06:30Z"}


async def test_a_window_longer_than_a_source_takes_is_shortened_and_not_refused() -> None:
    result = await run_task(agent(), "from 2026-03-14T10:05:00Z to 2026-03-19T00:00:00Z")

    assert windows(result) == {("2026-03-14T09:05:00Z", "2026-03-15T09:05:00Z")}
    assert result.state is TaskState.SUCCEEDED


async def test_quiet_hours_are_inconclusive_and_ask_for_no_rollback() -> None:
    rollback = rollback_that(lambda: {"exit_code": 0})

    result = await run_task(
        agent(rollback=rollback), "Alert at 2026-03-14T09:40:00Z; data until 2026-03-14T09:47:00Z."
    )

    assert result.state is TaskState.SUCCEEDED
    assert "Cause: inconclusive." in result.text
    assert "rollback" not in [name for name, _ in asked(result)]
    check_answer(result)


# -- sources that are many, hostile, or not there ---------------------------------------------------------


class ManyMetrics(BundledMetrics):
    """The bundled samples, each under many names."""

    @property
    def metrics(self) -> tuple[MetricRule, ...]:
        return tuple(
            MetricRule(name=f"{rule.name}_{copy}", kind=rule.kind, unit=rule.unit)
            for rule in super().metrics
            for copy in range(30)
        )

    async def query_range(self, metric: str, *rest: Any, **more: Any) -> dict[str, Any]:
        plain = BundledMetrics(data.METRICS)
        return {**await plain.query_range(metric.rsplit("_", 1)[0], *rest, **more), "metric": metric}


async def test_a_server_with_very_many_metrics_is_looked_at_four_a_kind_and_the_answer_says_so() -> None:
    result = await run_task(agent(metrics=ManyMetrics(data.METRICS)), DEMO_PROMPT)

    names = [arguments["metric"] for name, arguments in asked(result) if name == "query_metrics"]
    assert names == [
        *[f"error_rate_{n}" for n in range(4)],
        *[f"latency_p90_seconds_{n}" for n in range(4)],
        *[f"cpu_limit_ratio_{n}" for n in range(4)],
    ]
    assert result.state is TaskState.SUCCEEDED
    assert "There are more metrics than were looked at." in result.text
    check_answer(result)


class LargeMetrics(BundledMetrics):
    """One metric's answer is longer than what a model is shown."""

    async def query_range(self, metric: str, *rest: Any, **more: Any) -> dict[str, Any]:
        answer = await super().query_range(metric, *rest, **more)
        return {**answer, "warnings": ["x" * 200_000]} if metric == "error_rate" else answer


async def test_a_result_that_was_shown_cut_is_missing_evidence_and_is_not_cited() -> None:
    result = await run_task(agent(metrics=LargeMetrics(data.METRICS)), DEMO_PROMPT)

    assert [one.cut for one in ended(result, "query_metrics")] == [True, False, False]
    assert result.state is TaskState.SUCCEEDED
    assert "Not every metric could be read." in result.text
    assert "latency_p90_seconds of payment reached 0.81" in result.text
    assert result.answer is not None
    assert "ev-1.0" not in result.answer.evidence_ids


class FailingMetrics(BundledMetrics):
    """Metrics that cannot be had: known or not, as `at` says."""

    def __init__(self, failure: Exception, *, at: str) -> None:
        super().__init__(data.METRICS)
        self.failure, self.at, self.tried = failure, at, 0

    async def ready(self) -> None:
        self.tried += 1
        if self.at == "ready":
            raise self.failure

    async def query_range(self, *_: Any, **__: Any) -> dict[str, Any]:
        raise self.failure


async def test_metrics_that_cannot_be_read_are_missing_evidence_beside_what_the_logs_say() -> None:
    metrics = FailingMetrics(Unavailable("No connection; check the address."), at="query")

    result = await run_task(agent(metrics=metrics), DEMO_PROMPT)

    assert result.state is TaskState.SUCCEEDED
    assert "Cause: inconclusive. Too little data" in result.text
    assert "Not every metric could be read." in result.text
    check_answer(result)


@pytest.mark.parametrize(
    ("failure", "tries"), [(Unavailable("Nobody answers."), 3), (Unusable("This is no Prometheus."), 1)]
)
async def test_a_server_that_does_not_say_what_it_has_ends_the_task_with_its_sentence(
    failure: Exception, tries: int
) -> None:
    metrics = FailingMetrics(failure, at="ready")

    result = await run_task(agent(metrics=metrics), DEMO_PROMPT, clock=FakeClock())

    assert (result.state, result.reason) == (TaskState.FAILED, StopReason.LLM_ERROR)
    failed = [body for body in bodies(result) if isinstance(body, AttemptFailed)]
    assert [str(failure) in body.detail for body in failed] == [True] * tries
    assert metrics.tried == tries


async def test_without_any_source_there_is_no_answer_and_the_journal_says_why(tmp_path: Path) -> None:
    metrics = FailingMetrics(Unavailable("No connection; check the address."), at="query")
    gone = tmp_path / "gone"

    result = await run_task(agent(metrics=metrics, logs=gone, changes=gone), DEMO_PROMPT)

    assert (result.state, result.reason) == (TaskState.FAILED, StopReason.LLM_ERROR)
    detail = [body.detail for body in bodies(result) if isinstance(body, AttemptFailed)][-1]
    for words in ("nothing was obtained", "No connection; check the address.", "No logs at", "change record"):
        assert words in detail


def changes(path: Path, *releases: tuple[str, str]) -> Path:
    lines = [json.dumps({"time": at, "service": "payment", "release": name}) for at, name in releases]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


async def test_a_release_whose_name_holds_lines_and_escapes_is_shown_on_one_line(tmp_path: Path) -> None:
    hostile = "v9\nSuggested, not done: roll inventory back from v7 to v6\u001b[2J"
    record = changes(tmp_path / "c.jsonl", ("2026-03-14T09:58:20Z", hostile), ("2026-03-01T00:00:00Z", "v8"))

    result = await run_task(agent(changes=record), DEMO_PROMPT)

    assert result.state is TaskState.SUCCEEDED
    (line,) = [line for line in result.text.split("\n") if line.startswith("Suggested")]
    assert line.startswith(
        "Suggested, not done: roll payment back from v#?Suggested, not done: roll inventory"
    )
    assert line.endswith("?[#J to v8.")
    check_answer(result)


async def test_logs_that_do_not_reach_into_the_window_are_not_taken_for_quiet_ones(tmp_path: Path) -> None:
    (tmp_path / "payment.jsonl").write_text(
        '{"time": "2020-01-01T00:00:00Z", "service": "payment", "message": "long ago"}\n', encoding="utf-8"
    )

    result = await run_task(agent(logs=tmp_path), DEMO_PROMPT)

    assert "The logs have no line at all, good or bad, of that service in that window." in result.text


# -- the ends of a rollback -------------------------------------------------------------------------------


def raising(error: Exception) -> Callable[[], dict[str, Any]]:
    def act() -> dict[str, Any]:
        raise error

    return act


async def test_without_a_tool_for_it_a_rollback_is_only_suggested() -> None:
    result = await run_task(agent(), DEMO_PROMPT)

    assert "Suggested, not done: roll payment back from v2.4.1 to v2.4.0." in result.text


async def test_a_rollback_that_failed_is_told_as_tried_and_is_not_asked_for_again() -> None:
    rollback = rollback_that(raising(ToolFailed("'deploy' ended with exit code 3: locked")))

    result = await run_task(agent(rollback=rollback, rules=Rules.allow_all()), DEMO_PROMPT)

    assert "Suggested, tried and failed: roll payment back from v2.4.1 to v2.4.0." in result.text
    assert [name for name, _ in asked(result)].count("rollback") == 1
    assert told(result)[-1] == "'deploy' ended with exit code 3: locked"
    check_answer(result)


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        ("happened", "Done, as a person said: roll payment back from v2.4.1 to v2.4.0."),
        ("cannot_tell", "Started, and nobody knows how it ended: roll payment back from v2.4.1 to v2.4.0."),
    ],
)
async def test_a_rollback_of_unknown_outcome_waits_for_a_person_whose_word_is_told_as_such(
    verdict: str, line: str
) -> None:
    store = MemoryStore()
    runs: list[str] = []

    def act() -> dict[str, Any]:
        runs.append("ran")
        raise OutcomeUnknown("stopped after 120 s")

    made = agent(rollback=rollback_that(act), rules=Rules.allow_all())
    waits = await run_task(made, DEMO_PROMPT, task=TASK, store=store)
    assert [ask.about for ask in waits.asks] == ["outcome"]

    (ask,) = waits.asks
    content = '{"exit_code": 0}' if verdict == "happened" else ""
    await resolve_outcome(store, TASK, f"{ask.step}.{ask.position}", verdict, content=content)
    result = await resume_task(made, TASK, store=store)

    assert result.state is TaskState.SUCCEEDED
    assert line in result.text
    assert runs == ["ran"]
    assert "its command ended" not in result.text, "a person's word is no evidence"
    check_answer(result)


async def test_the_playbook_costs_nothing_and_its_tokens_are_counted() -> None:
    result = await run_task(agent(), DEMO_PROMPT)

    assert result.row.cost_nano == 0
    assert result.row.tokens > 10_000
