"""The SQLite store passes the suite that every store passes."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fencepost.ports import Store
from fencepost.stores.sqlite import SqliteStore
from fencepost.testing.clock import FakeClock
from fencepost.testing.store_contract import StoreContract


class TestSqliteStore(StoreContract):
    @pytest.fixture
    async def make_store(self, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Callable[..., Store]]:
        made: list[SqliteStore] = []

        def make(**how: Any) -> SqliteStore:
            made.append(SqliteStore(tmp_path / "store.db", now=clock.wall, **how))
            return made[-1]

        yield make
        for store in made:
            await store.close()
