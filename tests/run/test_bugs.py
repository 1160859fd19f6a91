"""A bug of ours, or of a part that may not fail, ends the task with its name and still reaches the caller."""

from __future__ import annotations

import pytest

from fencepost import (
    Agent,
    Limits,
    MemoryStore,
    ModelProfile,
    ModelRequest,
    Recovery,
    Reply,
    StopReason,
    TaskState,
    run_task,
)
from fencepost.core.entries import Stopped
from fencepost.core.recovery import Reaction


class BrokenProfile:
    """A model that cannot say who it is any more once it was asked."""

    def __init__(self) -> None:
        self.asked = False

    @property
    def profile(self) -> ModelProfile:
        if self.asked:
            raise RuntimeError("the profile is gone")
        return ModelProfile("broken", input_nano=0, output_nano=0)

    async def reply(self, request: ModelRequest, sink: object, /) -> Reply:
        self.asked = True
        return Reply("")


async def test_a_bug_ends_the_task_as_an_internal_error_and_is_raised() -> None:
    store = MemoryStore()
    agent = Agent("a", BrokenProfile(), Limits(steps=3), recovery=Recovery(invalid_reply=Reaction.TELL_MODEL))
    with pytest.raises(RuntimeError, match="the profile is gone"):
        await run_task(agent, "go", store=store, task="task-1")
    row = await store.row("local", "task-1")
    assert (row.state, row.reason) == (TaskState.FAILED, StopReason.INTERNAL_ERROR)
    last = (await store.entries("local", "task-1"))[-1].body
    assert isinstance(last, Stopped)
    assert "the profile is gone" in last.detail
