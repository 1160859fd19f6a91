"""Every row over every embedded store, and the invariants after every row."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fencepost import MemoryStore, SqliteStore, Store
from tests.conformance.stage import Stage

OpenStore = Callable[..., Store]


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
    await stage.store.close()
