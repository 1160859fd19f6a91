"""Which tasks go: pure, so that sizes can be tried that no test writes."""

from collections.abc import Iterator

import pytest

from fencepost.core.lifecycle import StopReason, TaskState
from fencepost.ports import Tombstone
from fencepost.stores.retention import BATCH_BYTES, Bounds, Over, due


def over(*sizes: int) -> Iterator[Over]:
    for number, size in enumerate(sizes):
        yield Over(
            Tombstone(
                "acme", f"t-{number}", "a", TaskState.SUCCEEDED, StopReason.COMPLETED, 3, "chain",
                0.0, float(number), 99.0, size,
            )
        )  # fmt: skip


def ids(bounds: Bounds, *sizes: int) -> list[str]:
    return [stone.id for stone, _ in due(over(*sizes), bounds, now=1000.0, stored=sum(sizes))]


@pytest.mark.parametrize(
    ("sizes", "gone"),
    [
        ((BATCH_BYTES, 1), ["t-0"]),
        ((BATCH_BYTES - 1, 1, 1), ["t-0", "t-1"]),
        ((5 * BATCH_BYTES, 5 * BATCH_BYTES), ["t-0"]),
        ((1, 1, 1), ["t-0", "t-1", "t-2"]),
    ],
)
def test_a_batch_ends_with_the_task_that_fills_it_and_always_has_one(
    sizes: tuple[int, ...], gone: list[str]
) -> None:
    assert ids(Bounds("acme", 0.0, None, 100), *sizes) == gone


def test_a_dry_run_is_one_batch_however_large() -> None:
    assert ids(Bounds("acme", 0.0, None, 100, None), BATCH_BYTES, BATCH_BYTES) == ["t-0", "t-1"]


def test_what_is_young_goes_only_while_too_much_is_stored() -> None:
    assert ids(Bounds("acme", 999.0, 15, 100), 10, 10, 10) == ["t-0", "t-1"]
    assert ids(Bounds("acme", 999.0, None, 100), 10, 10, 10) == ["t-0", "t-1"]
    assert ids(Bounds("acme", 1000.0, 1000, 100), 10, 10, 10) == ["t-0"]
