"""The types that commands take and give, named in one place for whatever talks to the service.

Rule: `cli` (and what comes beside it) imports these names from here and knows nothing of where they live.
"""

from __future__ import annotations

from fencepost.ports import Act, Delta, LateRecord, Store, TaskRow, Tombstone, Totals
from fencepost.run.agent import Agent
from fencepost.run.live import Event, Live
from fencepost.run.running import Result, new_task_id

__all__ = [
    "Act",
    "Agent",
    "Delta",
    "Event",
    "LateRecord",
    "Live",
    "Result",
    "Store",
    "TaskRow",
    "Tombstone",
    "Totals",
    "new_task_id",
]
