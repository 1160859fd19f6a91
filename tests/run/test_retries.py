"""Attempts to get one reply: at most three, visible, charged, inside the deadline (contract 2.1)."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost import Limits, ModelFailed, Result, StopReason, Usage
from fencepost.core.entries import AttemptFailed, ModelAsked
from fencepost.models.scripted import say
from fencepost.testing import FakeClock
from tests.conformance.stage import Stage


def failures(result: Result) -> list[AttemptFailed]:
    return [e.body for e in result.entries if isinstance(e.body, AttemptFailed)]


def busy(**more: Any) -> ModelFailed:
    return ModelFailed("busy", **{"kind": "status", "status": 429, "retriable": True, **more})


async def test_a_failed_attempt_is_an_entry_with_its_charge_and_the_next_one_is_asked_for(
    stage: Stage, clock: FakeClock
) -> None:
    script = [busy(retry_after=2), busy(retry_after=3, usage=Usage(4, 2)), say("done")]
    result = await stage.play(script, options={"clock": clock})
    first, second = failures(result)
    assert [(f.attempt, f.kind, f.status, f.retry_in) for f in (first, second)] == [
        (1, "status", 429, 2.0),
        (2, "status", 429, 3.0),
    ]
    asked = [e.body for e in result.entries if isinstance(e.body, ModelAsked)]
    assert [a.attempt for a in asked] == [1, 2, 3]
    assert (first.charged_tokens, second.charged_tokens) == (asked[0].reserved_tokens, 6)
    assert result.row.tokens == asked[0].reserved_tokens + 6 + 15
    assert result.row.seconds == 5.0
    assert result.text == "done"


async def test_the_third_failure_is_the_last(stage: Stage, clock: FakeClock) -> None:
    result = await stage.play([busy(), busy(), busy()], options={"clock": clock})
    assert result.reason is StopReason.LLM_ERROR
    assert len(failures(result)) == 3


async def test_pauses_nobody_named_grow_and_are_spread(stage: Stage, clock: FakeClock) -> None:
    result = await stage.play([busy(), busy(retry_after=-1), say("done")], options={"clock": clock})
    first, second = (f.retry_in for f in failures(result))
    assert first is not None
    assert second is not None
    assert 0.25 <= first <= 0.5 <= second <= 1.0
    assert result.row.seconds == pytest.approx(first + second)


async def test_a_failure_that_is_not_to_be_retried_is_the_last(stage: Stage) -> None:
    result = await stage.play([ModelFailed("who are you", kind="auth", status=401)])
    assert (result.reason, [f.retry_in for f in failures(result)]) == (StopReason.LLM_ERROR, [None])


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("timeout", StopReason.LLM_TIMEOUT),
        ("overflow", StopReason.CONTEXT_OVERFLOW),
        ("error", StopReason.LLM_ERROR),
    ],
)
async def test_the_kind_of_the_last_failure_names_the_stop(
    stage: Stage, kind: str, reason: StopReason
) -> None:
    assert (await stage.play([ModelFailed("no", kind=kind)])).reason is reason


@pytest.mark.parametrize(("retry_after", "attempts"), [(599, 2), (600, 1), (601, 1)])
async def test_a_pause_must_end_before_the_task_does(
    stage: Stage, clock: FakeClock, retry_after: float, attempts: int
) -> None:
    script = [busy(retry_after=retry_after), say("done")][:attempts]
    result = await stage.play(script, options={"clock": clock})
    assert len([e for e in result.entries if isinstance(e.body, ModelAsked)]) == attempts
    assert result.reason is (StopReason.COMPLETED if attempts == 2 else StopReason.TASK_TIMEOUT)


async def test_an_attempt_after_a_pause_gets_only_the_time_that_is_left(
    stage: Stage, clock: FakeClock
) -> None:
    limits = Limits(steps=5, task_seconds=8)
    agent = stage.agent([busy(retry_after=5), say("done")], limits=limits)
    result = await stage.run(agent, clock=clock)
    assert [request.seconds for request in agent.model.requests] == [8, 3]  # type: ignore[attr-defined]
    assert [e.seconds for e in result.entries if isinstance(e.body, ModelAsked)] == [0, 5]


async def test_a_pause_that_would_outlast_the_task_is_not_counted_as_time_used(
    stage: Stage, clock: FakeClock
) -> None:
    result = await stage.play([busy(retry_after=601)], options={"clock": clock})
    assert (result.reason, result.row.seconds) == (StopReason.TASK_TIMEOUT, 0)
