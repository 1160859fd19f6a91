"""A task that outgrows its model's context: results are left out, by name, and nothing else changes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from fencepost import (
    Agent,
    DefinitionInvalid,
    Limits,
    ModelProfile,
    Result,
    ScriptedModel,
    StopReason,
    ToolMessage,
    replay,
)
from fencepost.core.eliding import READ_ARTIFACT
from fencepost.core.entries import ContextElided, ModelAsked
from fencepost.core.messages import Message, ModelRequest, Reply, encode_message
from fencepost.models.function import FunctionModel
from fencepost.models.scripted import answer, call, calls, say
from fencepost.testing import Crashed, Pauses, Place
from fencepost.testing.pauses import crash
from tests.conformance.stage import Stage
from tests.run.conftest import Switch

LONG = "a line of a log that is long enough to quote; " * 100
# Room for about four results of LONG at three bytes a token, and the reply.
NARROW = ModelProfile("narrow", input_nano=0, output_nano=0, max_output_tokens=100, context_tokens=7000)
STEPS = 9


def elided(result: Result) -> list[ContextElided]:
    return [e.body for e in result.entries if isinstance(e.body, ContextElided)]


def reads(count: int, *, usage: Any = None) -> list[Reply]:
    return [calls(call("look", n=n), usage=usage) for n in range(count)]


def long(*_: object) -> str:
    return LONG


def shown(request: ModelRequest) -> list[str]:
    """The results a request carries."""
    return [m.content for m in request.messages if isinstance(m, ToolMessage)]


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel([*reads(STEPS), say("done")], profile=NARROW)


async def test_a_long_task_ends_well_in_a_short_context_and_each_request_fits(
    stage: Stage, model: ScriptedModel
) -> None:
    result = await stage.play([], stage.look(then=long), model=model)
    assert (result.reason, result.text) == (StopReason.COMPLETED, "done")
    sizes = [sum(len(encode_message(m)) for m in request.messages) for request in model.requests]
    assert max(sizes) / NARROW.bytes_per_token + 100 < 7000
    gone = [(body.step, body.position) for body in elided(result)]
    assert gone == [(step, 0) for step in range(1, len(gone) + 1)]
    for request in model.requests[1:]:
        assert shown(request)[-1] == LONG, "the last step is always shown whole"


async def test_the_model_sees_exactly_what_was_recorded(stage: Stage, model: ScriptedModel) -> None:
    result = await stage.play([], stage.look(then=long), model=model)
    replacements = [body.replacement for body in elided(result)]
    assert len(replacements) > 2
    last = shown(model.requests[-1])
    assert last == [*replacements, *[LONG] * (STEPS - len(replacements))]
    assert shown(model.requests[1]) == [LONG], "a request that was sent does not change"


async def test_leaving_out_costs_no_commit_of_its_own_and_comes_before_the_request(
    stage: Stage, model: ScriptedModel
) -> None:
    result = await stage.play([], stage.look(then=long), model=model)
    entries = result.entries
    commits = {entry.commit_id for entry in entries if not isinstance(entry.body, ContextElided)}
    for at, entry in enumerate(entries):
        if isinstance(entry.body, ContextElided):
            assert entry.commit_id in commits
            assert isinstance(entries[at + 1].body, ContextElided | ModelAsked)


async def test_a_replay_leaves_out_the_same_with_the_agent_and_without(
    stage: Stage, model: ScriptedModel
) -> None:
    agent = stage.agent([], stage.look(then=long), model=model)
    result = await stage.run(agent)
    assert elided(result)
    for known in (agent, None):
        again = await asyncio.to_thread(replay, result.entries, known)
        assert again.difference is None
        assert again.entries == len(result.entries)
    wider = msgspec.structs.replace(NARROW, context_tokens=70_000)
    other = await asyncio.to_thread(replay, result.entries, None, profile=wider)
    assert other.difference is not None
    assert other.difference.seq == next(e.seq for e in result.entries if isinstance(e.body, ContextElided))


async def test_watchers_are_told_what_was_left_out(stage: Stage, model: ScriptedModel) -> None:
    result = await stage.play([], stage.look(then=long), model=model)
    told = [event.entry for event in stage.events if isinstance(event.entry, ContextElided)]
    assert told == elided(result)


async def test_a_result_that_was_left_out_is_cited_by_what_the_model_had_seen(stage: Stage) -> None:
    def cites(request: ModelRequest) -> Reply:
        assert LONG not in shown(request)[0]
        return answer("It was logged.", {"text": "so", "evidence_id": "ev-1.0", "quote": LONG[:60]})

    model = ScriptedModel([*reads(STEPS), cites], profile=NARROW)
    result = await stage.play([], stage.look(then=long), model=model, answer="cited")
    assert result.reason is StopReason.COMPLETED
    first = elided(result)[0]
    assert (first.step, first.position) == (1, 0)
    assert "ev-1.0" in first.replacement


@pytest.mark.parametrize("place", ["append.before", "append.after"])
async def test_a_run_that_takes_over_sends_what_the_dead_one_would_have_sent(
    stage: Stage, switch: Switch, place: str
) -> None:
    def says(request: ModelRequest) -> Reply:
        sent[request.step] = [encode_message(message) for message in request.messages]
        return (
            say("done")
            if request.step > STEPS
            else calls(call("look", id=f"c{request.step}", n=request.step), usage=None)
        )

    sent: dict[int, list[bytes]] = {}
    agent = stage.agent([], stage.look(then=long), model=FunctionModel(says, profile=NARROW))
    whole = await stage.run(agent)
    wanted, commits = sent, len({e.commit_id for e in whole.entries})
    assert elided(whole)
    for number in range(1, commits):
        sent = {}
        switch.hooks = Pauses(Place(place, number), crash)
        with pytest.raises(Crashed):
            await stage.run(agent, task=f"t{number}")
        switch.hooks = None
        result = await stage.resume(agent, f"t{number}", take_over=True)
        assert [b.replacement for b in elided(result)] == [b.replacement for b in elided(whole)]
        assert result.text == "done"
        assert sent == {step: wanted[step] for step in sent}


async def test_a_last_step_that_does_not_fit_stops_the_task_before_it_is_sent(stage: Stage) -> None:
    model = ScriptedModel([*reads(1)], profile=msgspec.structs.replace(NARROW, context_tokens=1000))
    result = await stage.play([], stage.look(then=long), model=model)
    assert result.reason is StopReason.CONTEXT_OVERFLOW
    assert elided(result) == []
    assert len(model.requests) == 1


async def test_what_was_left_out_is_read_again_by_the_digest_that_stands_in_its_place(stage: Stage) -> None:
    """A result that was cut is kept whole, so leaving out what was shown of it loses nothing."""

    def reads_again(request: ModelRequest) -> Reply:
        place = shown(request)[0]
        assert f"{READ_ARTIFACT} reads it again" in place
        digest = place.split("sha256 ")[1][:64]
        return calls(call(READ_ARTIFACT, digest=digest, offset=0, limit=200), usage=None)

    script: list[Any] = [*reads(STEPS), reads_again, say("done")]
    model = ScriptedModel(script, profile=NARROW)
    limits = Limits(steps=STEPS + 2, result_bytes=4000)
    agent = Agent("a", model, limits, tools=(stage.look(then=long),), artifacts=True)
    result = await stage.run(agent)
    assert (result.reason, result.text) == (StopReason.COMPLETED, "done")
    assert LONG[:200] in shown(model.requests[-1])[-1]


def test_a_model_whose_reply_fills_its_context_is_refused() -> None:
    model = ScriptedModel([], profile=msgspec.structs.replace(NARROW, context_tokens=100))
    with pytest.raises(DefinitionInvalid, match="lower max_output_tokens"):
        Agent("a", model, Limits(steps=1)).check()


async def test_a_step_encodes_what_it_adds_and_not_what_came_before(stage: Stage) -> None:
    """400 steps of an adapter that encodes each request: one encoding a message, not one a step and message."""
    encoded = 0

    def encode(message: Message) -> bytes:
        nonlocal encoded
        encoded += 1
        return encode_message(message)

    def says(request: ModelRequest) -> Reply:
        sent = request.rendered(encode)
        assert sent[-1] == encode_message(request.messages[-1])
        assert len(sent) == len(request.messages)
        return say("done") if request.step == 401 else calls(call("look", n=request.step))

    limits = Limits(steps=401, tool_calls=400)
    result = await stage.play([says] * 401, stage.look(), limits=limits)
    assert result.reason is StopReason.COMPLETED
    assert encoded == 1 + 2 * 400
