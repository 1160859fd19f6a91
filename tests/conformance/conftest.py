"""Every row over every embedded store, and the invariants and a replay after every row."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fencepost import MemoryStore, SqliteStore, Store, replay
from tests.conformance.stage import TENANTS, Stage

OpenStore = Callable[..., Store]


MUTANT = "FENCEPOST_HUNG_SECONDS"


async def all_replay(stage: Stage) -> None:
    """L66 for every row: whatever happened in it, its journals replay from themselves alone."""
    for tenant in TENANTS:
        for row in await stage.store.tasks(tenant, limit=1000):
            entries = await stage.store.entries(tenant, row.id)
            found = await asyncio.to_thread(replay, entries)
            assert found.difference is None, f"task {row.id} does not replay: {found.difference}"
            assert found.entries == len(entries)


@pytest.fixture(params=["memory", "sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Open the store of this run of the row; options are the store's own (`hooks`, `now`)."""

    def opened(**options: Any) -> Store:
        if request.param == "memory":
            return MemoryStore(**options)
        return SqliteStore(tmp_path / "tasks.db", **options)

    return opened


@pytest.fixture
async def stage(open_store: OpenStore, tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage on an ordinary store, verified when the row is over."""
    stage = Stage(open_store(), tmp_path)
    yield stage
    await stage.verify()
    if MUTANT not in os.environ:  # a mutant is to be noticed by its own row
        await all_replay(stage)
    await stage.store.close()
