"""Rows L33 to L35 for tools in a process of their own: killed with all they started, and nothing of them is late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fencepost import Limits, StopReason, TaskState, Tool, tool
from fencepost.models.scripted import call, calls, say
from fencepost.service import tasks
from tests.conformance import killable
from tests.conformance.stage import HUNG_SECONDS, Script, Stage, held, results, said

BODIES = {
    each.__name__: each
    for each in (killable.sits, killable.spins, killable.swallows, killable.dies, killable.answers)
}
# Long enough for a warm child to connect on a busy machine.
LIMITS = Limits(steps=5, tool_seconds=0.5, grace_seconds=5.0)
PATIENT = Limits(steps=5, grace_seconds=5.0)


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

    async def act(self, body: str, effect: Any, *, parallel: bool = False) -> Tool:
        """The tool, with a child that is warm, so that its body begins well before any deadline."""
        act = tool(name="act", effect=effect, parallel=parallel, description="does it", isolation="process")(
            BODIES[body]
        )
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


@pytest.mark.parametrize(
    ("body", "effect", "parallel"),
    [
        ("spins", "read", False),
        ("swallows", "idempotent", True),
        ("sits", "write", False),
        ("spins", "write", True),
    ],
)
async def test_l34_a_cancel_kills_a_process_in_flight_with_its_tree(
    stage: Stage, listener: Listener, body: str, effect: str, parallel: bool
) -> None:
    act = await listener.act(body, effect, parallel=parallel)
    running = asyncio.create_task(stage.run(stage.agent(listener.asks()[:1], act), task="task-1"))
    await held(listener.begun)
    row = await stage.cancel("task-1")
    assert row.state is TaskState.CANCELLED
    result = await running
    await held(listener.over)
    assert (result.outcome, result.reason) == ("fenced", StopReason.CANCELLED)
    assert said(result) == [("unknown" if effect == "write" else "cancelled", "CANCELLED")]
    assert stage.ran() == ["act 1"]
    assert await stage.store.late("local", "task-1") == ()


@pytest.mark.parametrize("effect", ["read", "write"])
async def test_l35_a_run_that_lost_its_lease_kills_its_process_and_writes_nothing(
    stage: Stage, listener: Listener, effect: str
) -> None:
    act = await listener.act("sits", effect)
    agent = stage.agent(listener.asks()[:1], act)
    running = asyncio.create_task(stage.run(agent, task="task-1", lease_seconds=1.5))
    await held(listener.begun)
    taken = await stage.store.claim(
        "thief", lease_seconds=None, tenant="local", task="task-1", take_over=True
    )
    assert taken is not None
    result = await running  # its next heartbeat is refused
    await held(listener.over)
    assert (result.outcome, said(result)) == ("fenced", [])
    assert await stage.store.late("local", "task-1") == ()
    await tasks.cancel(stage.store, "task-1")


async def test_l35_a_worker_that_shuts_down_kills_its_process_and_gives_the_task_back(
    stage: Stage, listener: Listener
) -> None:
    act = await listener.act("sits", "read")
    agent = stage.agent(listener.asks()[:1], act)
    running = asyncio.create_task(stage.run(agent, task="task-1"))
    await held(listener.begun)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await held(listener.over)
    assert (await stage.store.row("local", "task-1")).state is TaskState.READY_TO_RESUME
    await tasks.cancel(stage.store, "task-1")


# --- L78: an outcome that nobody heard ---------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["read", "write"])
async def test_l78_a_process_that_dies_without_a_result_leaves_a_write_unknown(
    stage: Stage, listener: Listener, effect: str
) -> None:
    act = await listener.act("dies", effect)
    result = await stage.play(listener.asks(), act, limits=PATIENT)
    await held(listener.over)
    if effect == "write":
        assert [(ask.about, ask.cause) for ask in result.asks] == [("outcome", "unknown")]
    else:
        assert said(result) == [("failed", "tool_error")]
    assert stage.ran() == ["act 1"]


async def test_l33_a_process_that_answers_is_an_ordinary_call_and_leaves_nothing_running(
    stage: Stage, listener: Listener
) -> None:
    act = await listener.act("answers", "write")
    result = await stage.play(listener.asks(), act, limits=PATIENT)
    await held(listener.over)
    assert (result.reason, said(result)) == (StopReason.COMPLETED, [("ok", "")])
    assert [body.content for body in results([e.body for e in result.entries])] == ["act 1"]
