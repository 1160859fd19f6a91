"""Replies no adapter should make: each becomes an entry every store can hold, and nothing of it runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from fencepost import (
    Agent,
    Finish,
    FunctionModel,
    Limits,
    Reply,
    Result,
    SqliteStore,
    StopReason,
    ToolCall,
    run_task,
    tool,
)
from fencepost.core.entries import Replied
from fencepost.core.messages import ToolDefinition
from fencepost.models.scripted import say
from fencepost.ports import Authorization
from fencepost.run.agent import DefaultBoundary

ran: list[int] = []


@tool(effect="read")
def look(n: int = 0) -> str:
    """Something that must not run."""
    ran.append(n)
    return "seen"


async def play(tmp_path: Path, *replies: Reply, **options: Any) -> Result:
    """The replies, one a step, and then "ok", in a store that encodes what it keeps."""
    ran.clear()
    left = [*replies, say("ok")]
    agent = Agent("a", FunctionModel(lambda _: left.pop(0)), Limits(steps=4), tools=[look], **options)
    return await run_task(agent, "Look.", store=SqliteStore(tmp_path / "tasks.db"))


def odd(**fields: Any) -> Reply:
    """A reply with one good call, and with fields of types they should not have."""
    return Reply(**{"calls": (ToolCall("1", "look", "{}"),), "finish": Finish.TOOL_CALLS, **fields})


@pytest.mark.parametrize("finish", [None, "done", "", 7, ["stop"]])
async def test_a_finish_that_is_none_is_unknown_and_executes_nothing(tmp_path: Path, finish: Any) -> None:
    result = await play(tmp_path, odd(finish=finish))
    assert (result.reason, ran) == (StopReason.INVALID_DECISION, [])
    assert "finish 'unknown'" in result.entries[-1].body.detail  # type: ignore[union-attr]


async def test_a_finish_in_plain_words_is_the_one_it_names(tmp_path: Path) -> None:
    assert (await play(tmp_path, odd(finish="tool_calls"))).reason is StopReason.COMPLETED
    assert ran == [0]
    assert (await play(tmp_path, odd(finish="length"))).reason is StopReason.TRUNCATED_REPLY


@pytest.mark.parametrize("bad", ["\ud800", "a\0"])
async def test_text_that_no_store_can_hold_is_replaced(tmp_path: Path, bad: str) -> None:
    result = await play(tmp_path, odd(calls=(ToolCall(bad, "look", "{}"),)), odd(text=bad, model=bad))
    assert result.reason is StopReason.COMPLETED
    assert bad not in repr(result.entries)
    cited = await play(tmp_path, odd(calls=(ToolCall(bad, "answer", "{}"),)), answer="cited")
    assert cited.reason is StopReason.INVALID_EVIDENCE


@pytest.mark.parametrize("verdict", ["allow", "deny"])
async def test_a_reason_of_the_rules_that_no_store_can_hold_is_replaced(tmp_path: Path, verdict: str) -> None:
    class Odd(DefaultBoundary):
        """Rules whose words are no text."""

        def authorize(self, principal: str, definition: ToolDefinition, arguments: str, /) -> Authorization:
            return Authorization(verdict, "\ud800 and \0", self.version)

    result = await play(tmp_path, odd(), boundary=Odd())
    assert result.reason is StopReason.COMPLETED
    replied = result.entries[2].body
    assert isinstance(replied, Replied)
    assert replied.calls[0].reason == "? and \ufffd"


@pytest.mark.parametrize("arguments", [None, [], b"{}", 7])
async def test_arguments_that_are_no_text_run_nothing(tmp_path: Path, arguments: Any) -> None:
    result = await play(tmp_path, odd(calls=(ToolCall("1", "look", arguments),)))
    assert (result.reason, ran) == (StopReason.COMPLETED, [])
    cited = await play(tmp_path, odd(calls=(ToolCall("1", "answer", arguments),)), answer="cited")
    assert cited.reason is StopReason.INVALID_EVIDENCE


async def test_many_answers_in_one_reply_cost_no_more_than_their_number(tmp_path: Path) -> None:
    many = tuple(ToolCall(str(n), "answer", "{}") for n in range(20_000))
    started = time.perf_counter()
    result = await play(tmp_path, odd(calls=many), answer="cited")
    assert time.perf_counter() - started < 2  # by the square of their number it is seconds
    assert result.reason is StopReason.INVALID_EVIDENCE
