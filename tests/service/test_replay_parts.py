"""The parts of a replay: time that jumps, profiles worked out, differences told."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fencepost import Agent, Limits, MemoryStore, ModelProfile, ScriptedModel, run_task, tool
from fencepost.core.messages import ModelRequest, UserMessage
from fencepost.models.scripted import call, calls, say
from fencepost.service.replay.difference import compare_requests, first_difference
from fencepost.service.replay.files import read_journal
from fencepost.service.replay.jumping import JumpingLoop, NothingToAwait, run_jumping
from fencepost.service.replay.profiles import profile_of
from fencepost.service.replay.replaying import replay
from fencepost.service.replay.script import Script, parts_of

CRASHED = Path(__file__).parents[1] / "golden" / "v1" / "crashed.jsonl"


# --- time


def test_hours_pass_at_once_when_nothing_else_is_to_be_done() -> None:
    async def waits() -> float:
        before = asyncio.get_running_loop().time()
        await asyncio.sleep(7200)
        return asyncio.get_running_loop().time() - before

    began = time.monotonic()
    assert run_jumping(waits()) == pytest.approx(7200)
    assert time.monotonic() - began < 60


def test_time_does_not_jump_over_real_work() -> None:
    async def waits() -> str:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        done = loop.create_future()
        threading.Timer(0.02, lambda: loop.call_soon_threadsafe(done.set_result, "real")).start()
        loop.real += 1
        try:
            async with asyncio.timeout(60):
                return str(await done)
        finally:
            loop.real -= 1

    assert run_jumping(waits()) == "real"


def test_waiting_for_what_never_comes_is_told() -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(NothingToAwait, match="that the journal does not hold"):
        run_jumping(waits())


# --- segments


def test_each_claim_and_each_act_is_a_part_of_its_own() -> None:
    entries = read_journal(CRASHED.read_bytes()).entries
    parts = parts_of(entries)
    assert [part.act for part in parts] == [False, False, False]
    assert parts[0].start == 1
    assert parts[-1].end == len(entries)
    assert all(one.end == other.start for one, other in itertools.pairwise(parts))


# --- profiles


@tool(effect="read")
async def look(n: int) -> str:
    """Look."""
    return f"seen {n} " * 20


@pytest.mark.parametrize(
    "profile",
    [
        ModelProfile("a", bytes_per_token=3, max_output_tokens=256, input_nano=3, output_nano=15),
        ModelProfile("b", bytes_per_token=4, max_output_tokens=4096, input_nano=0, output_nano=0),
        ModelProfile("c", bytes_per_token=7, max_output_tokens=100, input_nano=250, output_nano=1000),
        ModelProfile("d", max_output_tokens=9),
    ],
    ids=lambda profile: profile.name,
)
async def test_the_profile_is_worked_out_from_what_was_reserved(profile: ModelProfile) -> None:
    script: list[Any] = [calls(call("look", n=1)), calls(call("look", n=2)), say("seen")]
    agent = Agent("a", ScriptedModel(script, profile=profile), Limits(steps=5), tools=(look,))
    result = await run_task(agent, "Look around, please.", store=MemoryStore())
    assert profile_of(Script(result.entries), profile.name) == profile
    assert (await asyncio.to_thread(replay, result.entries)).same


# --- differences


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        ({"a": 1}, {"a": 2}, ("a", "1", "2")),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, ("a.b[1]", "2", "3")),
        ({"a": [1]}, {"a": [1, 2]}, ("a, how many", "1", "2")),
        ({}, {"a": 1}, ("a", "nothing", "1")),
        ({"digest": "x", "z": 1}, {"digest": "y", "z": 2}, ("z", "1", "2")),
        ([{"name": "a"}, {"name": "b"}], [{"name": "b"}, {"name": "a"}], (", the order", "a, b", "b, a")),
        ({"a": 1}, [1], ("", '{"a":1}', "[1]")),
    ],
)
def test_the_first_difference_of_two_documents_is_named(was: Any, now: Any, told: tuple[str, ...]) -> None:
    assert first_difference(was, now) == told


def test_long_texts_are_cut_around_the_place_where_they_part() -> None:
    before = "a" * 500
    _, was, now = first_difference(before + "X" + before, before + "Y" + before)
    assert len(was) == len(now) == 122
    assert was[0] == was[-1] == "…"
    assert was.index("X") == now.index("Y")


def request(*messages: UserMessage, instructions: str = "", seconds: float = 1.0) -> ModelRequest:
    return ModelRequest(instructions, messages, (), 1, 1, seconds, 100)


def test_requests_are_compared_by_what_the_model_is_told_and_not_by_the_time_it_has() -> None:
    one = request(UserMessage("do it"), seconds=1.0)
    assert compare_requests(2, one, request(UserMessage("do it"), seconds=2.0)) is None
    found = compare_requests(2, one, request(UserMessage("do It")))
    assert str(found) == "entry 2 (ModelAsked) request messages[0].text: recorded 'do it', replayed 'do It'"
    found = compare_requests(2, one, request(UserMessage("do it"), instructions="Well."))
    assert str(found) == "entry 2 (ModelAsked) request instructions: recorded '', replayed 'Well.'"
