"""The memory store is the reference: it passes the suite, and its chain costs nothing until it is read."""

from collections.abc import Callable

import pytest

from fencepost.ports import Store
from fencepost.stores.memory import MemoryStore
from fencepost.testing.clock import FakeClock
from fencepost.testing.facts import TENANT, asked, held
from fencepost.testing.store_contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def make_store(self, clock: FakeClock) -> Callable[..., Store]:
        return MemoryStore(clock.wall).another


async def test_the_chain_is_caught_up_only_when_a_row_is_read() -> None:
    store = MemoryStore()
    holder = await held(store)
    task = store._tasks[TENANT, "t-1"]
    for step in range(10):
        await holder.append(asked(step))
    assert task.head_seq == 1
    await store.row(TENANT, "t-1")
    assert task.head_seq == 11


async def test_a_journal_that_is_what_its_row_says_verifies() -> None:
    store = MemoryStore()
    holder = await held(store)
    await holder.append(asked())
    assert await store.verify(TENANT, "t-1") is None
    store._tasks[TENANT, "t-1"].seq = 7
    assert await store.verify(TENANT, "t-1") == "the row is at seq 7, the journal ends at 2"
