"""The suite that every store passes: subclass it, say how your store is made, and run it with pytest.

    class TestMyStore(StoreContract):
        @pytest.fixture
        async def make_store(self, clock):
            ...
            yield make          # then close what was made

`make(hooks=None)` returns a new handle on the same empty data each time it is called in one test: a
second connection, so that a store with a server or a file is tested under two. Its time is `clock.wall`. The
suite is async; it wants anyio's pytest plugin with `anyio_mode = "auto"` and the asyncio backend.

Beside the fixture there is nothing to adapt: a test that does not fit your store has found a difference.
"""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.testing.clock import FakeClock
from fencepost.testing.store_claims import ClaimContract
from fencepost.testing.store_commits import CommitContract, MakeStore
from fencepost.testing.store_interventions import InterventionContract, OverlapContract
from fencepost.testing.store_retention import RetentionContract
from fencepost.testing.store_sides import SideContract

__all__ = ["MakeStore", "StoreContract"]


class StoreContract(
    CommitContract, ClaimContract, InterventionContract, OverlapContract, SideContract, RetentionContract
):
    """Everything a store promises, one test a promise."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        """The time of every store in a test."""
        return FakeClock()

    @pytest.fixture
    def make_store(self, clock: FakeClock) -> Any:
        """Override this: it is what a store of yours is made with."""
        raise NotImplementedError(f"override make_store in {type(self).__name__}; {clock} is its time")
