"""The example agent of one's own: it waits before it orders, goes on elsewhere, and orders once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples import storekeeper
from fencepost import MemoryStore, TaskState, resume_task, run_task
from fencepost.service.tasks import decide_approval


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Path]:
    usual, storekeeper.ORDERS = storekeeper.ORDERS, tmp_path / "orders.jsonl"
    yield storekeeper.ORDERS
    storekeeper.ORDERS = usual


def counts(orders: Path) -> list[int]:
    """What was really ordered."""
    made = orders.read_text(encoding="utf-8").splitlines() if orders.exists() else []
    return [json.loads(line)["count"] for line in made]


@pytest.mark.parametrize(
    ("approve", "text", "ordered"),
    [
        (True, "More of anvil is on its way.", [7]),
        (False, "Nothing was done about anvil: order did not run.", []),
    ],
)
async def test_an_order_waits_for_a_person_and_is_made_once_or_not_at_all(
    orders: Path, *, approve: bool, text: str, ordered: list[int]
) -> None:
    store = MemoryStore()
    asked = await run_task(storekeeper.agent, "anvil", store=store, task="task")
    assert asked.state is TaskState.WAITING_APPROVAL
    assert counts(orders) == []

    await decide_approval(store, "task", "2.0", approve=approve, by="local/user")
    result = await resume_task(storekeeper.agent, "task", store=store)

    assert (result.state, result.text) == (TaskState.SUCCEEDED, text)
    assert counts(orders) == ordered


async def test_where_there_is_enough_nothing_is_asked(orders: Path) -> None:
    result = await run_task(storekeeper.agent, "rope", store=MemoryStore())

    assert result.text == "There is enough of rope: 40."
    assert counts(orders) == []
