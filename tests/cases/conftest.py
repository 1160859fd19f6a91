"""Cases are played on the stage of the conformance rows, over every embedded store."""

from __future__ import annotations

from tests.conformance.conftest import open_store, stage

__all__ = ["open_store", "stage"]
