"""The library's front door: the functions of `fencepost.run` with a store made for you when you give none."""

from __future__ import annotations

from typing import Any

from fencepost.ports import Store
from fencepost.run import running
from fencepost.run.agent import Agent
from fencepost.run.running import Result
from fencepost.stores.memory import MemoryStore


async def run_task(agent: Agent, prompt: str, *, store: Store | None = None, **options: Any) -> Result:
    """Run a new task until it stops, waits for people or is given back (`fencepost.run.running.run`).

    Without a store the task lives in memory and is gone with the process.
    """
    return await running.run(agent, prompt, store=MemoryStore() if store is None else store, **options)


async def resume_task(agent: Agent, task: str, *, store: Store, **options: Any) -> Result:
    """Run a stored task on from where its journal ends (`fencepost.run.running.resume`)."""
    return await running.resume(agent, task, store=store, **options)
