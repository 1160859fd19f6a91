"""The public package is a closed list, and what people do to tasks is in it."""

from __future__ import annotations

import fencepost
from fencepost import Agent, Limits, MemoryStore, TaskState, cancel, decide_approval, run_task, tool
from fencepost.testing import ScriptedModel, call, calls, say


def test_every_public_name_can_be_used() -> None:
    assert [name for name in fencepost.__all__ if getattr(fencepost, name, None) is None] == []
    assert len(fencepost.__all__) == len(set(fencepost.__all__))


@tool(effect="write")
async def pay(cents: int) -> str:
    """Pay somebody."""
    return f"paid {cents}"


async def test_a_user_of_the_package_approves_and_cancels_with_public_names_alone() -> None:
    store = MemoryStore()
    model = ScriptedModel([calls(call("pay", cents=5)), say("done")])
    agent = Agent("payer", model, Limits(steps=3), tools=(pay,))
    waits = await run_task(agent, "pay", store=store)
    assert (waits.state, waits.asks[0].tool) == (TaskState.WAITING_APPROVAL, "pay")
    await decide_approval(store, waits.task, "1.0", approve=True, digest=waits.asks[0].digest)
    done = await fencepost.resume_task(agent, waits.task, store=store)
    assert done.text == "done"
    assert (await cancel(store, waits.task)).state is TaskState.SUCCEEDED
