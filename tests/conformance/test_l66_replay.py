"""L66: a recorded task replays offline to the same chain, and whatever was changed is named as the first difference.

Each mutation below is one of the agent, of a tool, or of the record itself; the journals of all other rows are
replayed as well, after their row (conftest.py).
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fencepost import Agent, DefinitionInvalid, Entry, Limits, Recovery, Replay, Result, Tool, replay, tool
from fencepost.core.entries import CHAIN_START, CallEnded, Replied, encode_body, kind_of, link
from fencepost.core.errors import StoreCorrupt
from fencepost.core.messages import Finish
from fencepost.core.recovery import Reaction
from fencepost.models.scripted import answer, call, calls, say
from tests.conformance.stage import TINY_SECONDS, Says, Stage, forever

LIMITS = Limits(steps=10, grace_seconds=TINY_SECONDS)


async def played(entries: tuple[Entry, ...], agent: Agent | None = None, **options: Any) -> Replay:
    return await asyncio.to_thread(replay, entries, agent, **options)


async def named(entries: tuple[Entry, ...], agent: Agent, **options: Any) -> str:
    """The first difference as a sentence."""
    found = await played(entries, agent, **options)
    assert found.difference is not None
    return str(found.difference)


def chain_of(result: Result) -> str:
    head = CHAIN_START
    for entry in result.entries:
        head = link(head, kind_of(entry.body), encode_body(entry.body))
    return head


def looking(stage: Stage, **changes: Any) -> Agent:
    """An agent with two reads, one of which is asked; fresh each time."""
    tools = (stage.look("look"), stage.look("peek"))
    script = [calls(call("look", n=1)), calls(call("peek", n=2), call("look", n=3)), say("seen")]
    return dataclasses.replace(
        stage.agent(script, *tools, limits=LIMITS, instructions="Look well."), **changes
    )


async def test_l66_a_recorded_task_replays_to_the_same_chain_without_its_model(stage: Stage) -> None:
    result = await stage.run(looking(stage))
    effects = len(stage.effects.lines())
    for agent in (None, looking(stage)):
        found = await played(result.entries, agent)
        assert found.difference is None, str(found.difference)
        assert (found.entries, found.requests, found.reran) == (len(result.entries), 3, 0)
        assert found.chain == found.recorded == chain_of(result)
    assert len(stage.effects.lines()) == effects, "no tool ran"
    assert all(model.unused == len(model._script) for model in stage.models[1:]), "no model was asked"


async def test_l66_a_hundred_steps_replay_to_the_same_chain(stage: Stage) -> None:
    script: list[Any] = [calls(call("look", n=n), call("peek", n=n)) for n in range(99)]
    limits = Limits(steps=100, tool_calls=200)
    result = await stage.play(
        [*script, say("seen")], stage.look("look"), stage.look("peek", parallel=True), limits=limits
    )
    found = await played(result.entries)
    assert (found.difference, found.requests) == (None, 100)
    assert found.chain == chain_of(result)


async def test_l66_a_one_byte_edit_of_the_prompt_is_named(stage: Stage) -> None:
    result = await stage.run(looking(stage), "do it")
    said = await named(result.entries, looking(stage), prompt="do It")
    assert said == "entry 1 (Opened) prompt: recorded 'do it', replayed 'do It'"


async def test_l66_a_one_byte_edit_of_the_instructions_is_named(stage: Stage) -> None:
    result = await stage.run(looking(stage))
    said = await named(result.entries, looking(stage, instructions="Look well!"))
    assert said == "entry 1 (Opened) instructions: recorded 'Look well.', replayed 'Look well!'"


async def test_l66_a_reordered_tool_is_named(stage: Stage) -> None:
    result = await stage.run(looking(stage))
    tools = (stage.look("peek"), stage.look("look"))
    said = await named(result.entries, looking(stage, tools=tools))
    assert said == "entry 1 (Opened) tools, the order: recorded look, peek, replayed peek, look"


async def test_l66_a_changed_tool_is_named(stage: Stage) -> None:
    result = await stage.run(looking(stage))
    tools = (stage.look("look"), stage.look("peek", parallel=True))
    said = await named(result.entries, looking(stage, tools=tools))
    assert said == "entry 1 (Opened) tools[1].parallel: recorded nothing, replayed True"


async def test_l66_a_tool_more_is_named(stage: Stage) -> None:
    result = await stage.run(looking(stage))
    tools = (stage.look("look"), stage.look("peek"), stage.look("spy"))
    said = await named(result.entries, looking(stage, tools=tools))
    assert said == "entry 1 (Opened) tools, how many: recorded 2, replayed 3"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"limits": Limits(steps=11, grace_seconds=TINY_SECONDS)}, "limits.steps: recorded 10, replayed 11"),
        (
            {"recovery": Recovery(tool_error=Reaction.STOP)},
            "recovery.tool_error: recorded nothing, replayed 'stop'",
        ),
        ({"name": "other"}, "agent: recorded 'actor', replayed 'other'"),
    ],
    ids=["limit", "recovery", "name"],
)
async def test_l66_a_changed_limit_policy_or_name_is_named(
    stage: Stage, changes: dict[str, Any], said: str
) -> None:
    result = await stage.run(looking(stage))
    assert await named(result.entries, looking(stage, **changes)) == f"entry 1 (Opened) {said}"


class Mirror:
    """Tools that note what ran outside of the stage, whose journal knows nothing of a replay."""

    def __init__(self, then: Callable[[int, int], Any]) -> None:
        self.ran: list[str] = []

        async def look(n: int) -> Any:
            """Look."""
            self.ran.append(f"look {n}")
            said = then(n, len(self.ran))
            return await said if inspect.isawaitable(said) else said

        async def act(n: int) -> str:
            """Act."""
            self.ran.append(f"act {n}")
            return f"act {n}"

        self.tools: tuple[Tool, ...] = (
            tool(effect="read", timeout=TINY_SECONDS)(look),
            tool(effect="write")(act),
        )
        self.script = [calls(call("look", n=1), call("act", n=2), call("look", n=3)), say("seen")]

    def agent(self, stage: Stage) -> Agent:
        return stage.agent(self.script, *self.tools, limits=LIMITS)


async def test_l66_reads_run_again_and_writes_do_not(stage: Stage) -> None:
    mirror = Mirror(lambda n, times: {"seen": n})
    result = await stage.run(mirror.agent(stage))
    found = await played(result.entries, mirror.agent(stage), tools="read")
    assert (found.difference, found.reran) == (None, 2)
    assert found.chain == chain_of(result)
    assert mirror.ran == ["look 1", "act 2", "look 3", "look 1", "look 3"]


async def test_l66_a_changed_tool_output_is_named(stage: Stage) -> None:
    mirror = Mirror(lambda n, times: f"seen {n}" if times <= 3 else f"seen {n}, again")
    result = await stage.run(mirror.agent(stage))
    said = await named(result.entries, mirror.agent(stage), tools="read")
    assert said == "entry 5 (CallEnded) content: recorded 'seen 1', replayed 'seen 1, again'"


async def test_l66_a_read_that_hangs_when_it_runs_again_is_told_as_its_timeout(stage: Stage) -> None:
    mirror = Mirror(lambda n, times: "quick" if times <= 3 else forever())
    result = await stage.run(mirror.agent(stage))
    said = await named(result.entries, mirror.agent(stage), tools="read")
    assert said == "entry 5 (CallEnded) status: recorded 'ok', replayed 'timeout'"


async def test_l66_reads_can_only_run_again_with_an_agent(stage: Stage) -> None:
    result = await stage.run(looking(stage))
    with pytest.raises(DefinitionInvalid, match="name the agent"):
        await played(result.entries, tools="read")


async def test_l66_a_reply_that_was_changed_is_named_where_it_first_matters(stage: Stage) -> None:
    result = await stage.run(looking(stage))

    def forged(**changes: Any) -> tuple[Entry, ...]:
        return tuple(
            msgspec.structs.replace(e, body=msgspec.structs.replace(e.body, **changes))
            if isinstance(e.body, Replied) and e.body.step == 2
            else e
            for e in result.entries
        )

    said = await named(forged(charged_tokens=14), looking(stage))
    assert said == "entry 7 (Replied) charged_tokens: recorded 14, replayed 15"
    said = await named(forged(finish=Finish.LENGTH), looking(stage))
    assert said.startswith("entry 7 (Replied) calls[0].arguments: recorded")  # such a reply runs nothing
    with pytest.raises(StoreCorrupt, match=r"entry 8 \(CallStarted\) cannot follow"):
        await played(forged(calls=()), looking(stage))


async def test_l66_a_forged_result_is_named(stage: Stage) -> None:
    result = await stage.run(looking(stage))
    entries = tuple(
        msgspec.structs.replace(e, body=msgspec.structs.replace(e.body, content="look 7"))
        if isinstance(e.body, CallEnded) and e.seq == 5
        else e
        for e in result.entries
    )
    assert (await named(entries, looking(stage))).startswith("entry 5 (CallEnded) digest")


async def test_l66_approvals_replay_with_the_decisions_that_were_made(stage: Stage) -> None:
    script = [calls(call("act", n=1), call("act", n=2)), say("done")]
    agent = stage.agent(script, stage.act("act"), boundary=Says(act="ask"))
    waiting = await stage.run(agent)
    await stage.decide(waiting.task, "1.0")
    await stage.decide(waiting.task, "1.1", approve=False)
    result = await stage.resume(agent, waiting.task)
    found = await played(result.entries, agent)
    assert (found.difference, found.runs, found.chain) == (None, 2, chain_of(result))


async def test_l66_a_cancel_is_made_again_from_the_state_before_it(stage: Stage) -> None:
    script = [calls(call("act", n=1))]
    agent = stage.agent(script, stage.act("act"), boundary=Says(act="ask"))
    waiting = await stage.run(agent)
    row = await stage.cancel(waiting.task)
    entries = await stage.store.entries("local", waiting.task)
    assert (await played(entries, agent)).chain == row.chain
    forged = tuple(
        msgspec.structs.replace(e, body=msgspec.structs.replace(e.body, content="not cancelled"))
        if isinstance(e.body, CallEnded)
        else e
        for e in entries
    )
    said = await named(forged, agent)
    assert said == "entry 6 (CallEnded) content: recorded 'not cancelled', replayed 'cancelled'"


async def test_l66_an_answer_that_was_refused_and_one_that_was_taken_replay(stage: Stage) -> None:
    claim = {"text": "so", "evidence_id": "ev-1.0", "quote": "look 1"}
    script = [
        calls(call("look", n=1)),
        answer("seen 9 times", claim),
        calls(call("answer", summary=7)),
        answer("seen", claim),
    ]
    limits = Limits(steps=10, answer_tries=4)
    result = await stage.play(script, stage.look(), answer="cited", limits=limits)
    found = await played(result.entries)
    assert (found.difference, found.chain) == (None, chain_of(result))


async def test_l66_a_task_that_is_not_over_replays_as_far_as_it_is(stage: Stage) -> None:
    result = await stage.run(looking(stage))
    for length in range(1, len(result.entries) + 1):
        found = await played(result.entries[:length], looking(stage))
        assert (found.difference, found.entries) == (None, length)
