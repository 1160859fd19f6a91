"""RecordedModel: the replies and failures of a journal, for an agent that runs without its model."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost import (
    Agent,
    Limits,
    MemoryStore,
    ModelFailed,
    ModelProfile,
    ModelRequest,
    RecordedModel,
    Result,
    ScriptedModel,
    StopReason,
    run_task,
    tool,
)
from fencepost.models.scripted import call, calls, say

BUSY = ModelFailed("busy", kind="status", status=429, retriable=True, retry_after=0.0)


@tool(effect="read")
async def count(n: int) -> int:
    """Count."""
    return n + 1


def agent(model: ScriptedModel | RecordedModel) -> Agent:
    return Agent("counter", model, Limits(steps=4), tools=(count,))


async def recorded() -> Result:
    script: list[Any] = [BUSY, calls(call("count", n=1)), say("Two.")]
    return await run_task(agent(ScriptedModel(script)), "Count.", store=MemoryStore())


async def test_a_recorded_model_says_and_fails_again_what_the_journal_says() -> None:
    first = await recorded()
    model = RecordedModel(first.entries)
    again = await run_task(agent(model), "Count.", store=MemoryStore(), task=first.task)
    assert [e.body for e in again.entries] == [e.body for e in first.entries]
    assert [(r.step, r.attempt) for r in model.requests] == [(1, 1), (1, 2), (2, 1)]


async def test_bodies_alone_are_enough_and_streams_are_told_like_any_other() -> None:
    first = await recorded()
    pieces = []
    model = RecordedModel([entry.body for entry in first.entries])
    request = (await _requests(first))[-1]
    reply = await model.reply(request, lambda delta: pieces.append(delta.text))
    assert (reply.text, "".join(pieces)) == ("Two.", "Two.")


async def _requests(result: Result) -> list[ModelRequest]:
    model = RecordedModel(result.entries)
    await run_task(agent(model), "Count.", store=MemoryStore())
    return model.requests


async def test_asked_for_more_than_the_journal_holds_it_fails_and_says_so() -> None:
    first = await recorded()
    ended = await run_task(agent(RecordedModel(first.entries[:-3])), "Count.", store=MemoryStore())
    assert ended.reason is StopReason.LLM_ERROR
    with pytest.raises(ModelFailed, match="no reply to step 2, attempt 1"):
        await RecordedModel(first.entries[:-3]).reply((await _requests(first))[-1], None)


async def test_its_profile_is_the_one_given_or_has_the_recorded_name() -> None:
    first = await recorded()
    assert RecordedModel(first.entries).profile.name == "scripted"
    assert RecordedModel([]).profile.name == "recorded"
    mine = ModelProfile("mine", input_nano=5)
    assert RecordedModel(first.entries, profile=mine).profile == mine
