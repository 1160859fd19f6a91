"""The stage of the conformance rows on the memory store, whose `hooks` a test may set anew for each run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fencepost import Result, ToolMessage
from fencepost.stores.hooks import Hooks
from fencepost.stores.memory import MemoryStore
from fencepost.testing.clock import FakeClock
from tests.conformance.stage import Stage


class Switch:
    """Hooks that can be changed while a store is open."""

    def __init__(self) -> None:
        self.hooks: Hooks | None = None

    def __call__(self, point: str) -> None:
        if self.hooks is not None:
            self.hooks(point)


@pytest.fixture
def clock() -> FakeClock:
    """Time that only tests and pauses move."""
    return FakeClock()


@pytest.fixture
def switch() -> Switch:
    return Switch()


@pytest.fixture
async def stage(tmp_path: Path, clock: FakeClock, switch: Switch) -> AsyncIterator[Stage]:
    """A stage whose tasks all hold the invariants when the test is over."""
    stage = Stage(MemoryStore(clock.wall, hooks=switch), tmp_path)
    yield stage
    await stage.verify()


def contents(result: Result) -> list[str]:
    """What the model was told of each call, in order."""
    return [message.content for message in result.messages if isinstance(message, ToolMessage)]
