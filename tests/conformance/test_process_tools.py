"""Rows L33 to L35 for tools in a process of their own: killed with all they started, and nothing of them is late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fencepost import Limits, StopReason, TaskState, tool
from fencepost.models.scripted import call, calls, say
from fencepost.tools.process import ProcessTool
from tests.conformance import killable
from tests.conformance.stage import HUNG_SECONDS, Script, Stage, held, said

BODIES = {"sits": killable.sits, "spins": killable.spins, "swallows": killable.swallows}
KINDS = ["read", "idempotent", "write"]
# Long enough for a warm child to connect on a busy machine.
LIMITS = Limits(steps=5, tool_seconds=0.5, grace_seconds=5.0)


class Listener:
    """Hears of each body that begins, and when nothing of its tree is left."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.begun, self.over = asyncio.Event(), asyncio.Event()
        self.port = 0

    async def met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read(5) == b"begun"
        self.begun.set()
        assert await reader.read() == b""
        writer.close()
        self.over.set()

    def asks(self) -> Script:
        return [calls(call("act", n=1, port=self.port, effects=str(self.stage.effects.path))), say("done")]

    async def act(self, body: str, effect: Any, *, parallel: bool = False) -> ProcessTool:
        """The tool, with a child that is warm, so that its body begins well before any deadline."""
        act = tool(name="act", effect=effect, parallel=parallel, description="does it", isolation="process")(
            {**BODIES, "answers": killable.answers}[body]
        )
        assert isinstance(act, ProcessTool)
        async with asyncio.timeout(HUNG_SECONDS):
            await act.warm()
        return act


@pytest.fixture
async def listener(stage: Stage) -> AsyncIterator[Listener]:
    listener = Listener(stage)
    server = await asyncio.start_server(listener.met, "127.0.0.1", 0)
    async with server:
        listener.port = server.sockets[0].getsockname()[1]
        yield listener


@pytest.mark.parametrize(
    ("body", "effect", "parallel"),
    [
        ("sits", "read", False),
        ("spins", "idempotent", True),
        ("swallows", "write", False),
        ("sits", "write", True),
    ],
)
async def test_l33_a_process_that_does_not_end_in_time_is_killed_with_its_tree(
    stage: Stage, listener: Listener, body: str, effect: str, parallel: bool
) -> None:
    act = await listener.act(body, effect, parallel=parallel)
    result = await stage.play(listener.asks(), act, limits=LIMITS)
    await held(listener.over)
    if effect == "write":
        assert (result.outcome, result.state) == ("waiting", TaskState.WAITING_APPROVAL)
        assert [(ask.about, ask.cause) for ask in result.asks] == [("outcome", "timeout")]
    else:
        assert result.reason is StopReason.COMPLETED
        assert said(result) == [("timeout", "timeout")]
    assert stage.ran() == ["act 1"]
    assert await stage.store.late("local", result.task) == ()
