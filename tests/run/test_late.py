"""What comes after its call was closed is kept beside the journal, and never hurts anybody."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost import Limits, MemoryStore, tool
from fencepost.core.errors import StoreFailed
from fencepost.ports import CallContext, LateRecord, Lease
from fencepost.run.late import LateShelf
from fencepost.run.perform import Call, Returned
from fencepost.testing.facts import TENANT, held


@tool(effect="read")
async def look() -> str:
    """See."""
    return "seen"


CONTEXT = CallContext("t-1", TENANT, "ada", 1, 0, 1, "t-1:1.0", 1.0)
CALL = Call(look, look.prepare("{}"), CONTEXT, "")


def shelf(store: Any) -> LateShelf:
    return LateShelf(store, Lease(TENANT, "t-1", 1, 1, "w", None), Limits(3))


async def test_a_late_result_is_kept_beside_the_journal() -> None:
    store = MemoryStore()
    await held(store)
    await shelf(store).put(CALL, Returned("seen"))
    assert [record.content for record in await store.late(TENANT, "t-1")] == ["seen"]


async def test_a_result_that_comes_after_its_task_was_pruned_is_dropped_without_a_word() -> None:
    store = MemoryStore()
    await (await held(store)).stop()
    assert len(await store.prune(TENANT, older_than=0.0)) == 1
    await shelf(store).put(CALL, Returned("seen"))
    assert await store.stored_bytes(TENANT) == 0


async def test_a_store_that_fails_has_nobody_to_tell() -> None:
    class Failing:
        asked = 0

        async def record_late(self, record: LateRecord, /) -> None:
            self.asked += 1
            raise StoreFailed("no disk")

    store = Failing()
    await shelf(store).put(CALL, Returned("seen"))
    assert store.asked == 1


async def test_a_defect_of_a_store_is_not_swallowed() -> None:
    class Broken:
        async def record_late(self, record: LateRecord, /) -> None:
            raise KeyError(record.task)

    with pytest.raises(KeyError):
        await shelf(Broken()).put(CALL, Returned("seen"))
