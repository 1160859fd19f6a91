"""What the commands need of the rest of the program: one object, made by the composition root (app.py).

Rule: commands know the core, the service and this protocol. Stores, models and agents come through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from fencepost.service.definitions import Source
from fencepost.service.surface import Agent, Live, Result, Store


class Application(Protocol):
    """The program behind the commands."""

    @property
    def version(self) -> str:
        """The version of the package."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment the program was started with."""
        ...

    @property
    def debug(self) -> bool:
        """Whether tracebacks are wanted; False while the settings cannot be read."""
        ...

    @property
    def principal(self) -> str:
        """Who is acting: the user of the operating system."""
        ...

    @property
    def agents(self) -> Mapping[str, str]:
        """The agents that have a name, each with one sentence about it."""
        ...

    @property
    def demo_prompt(self) -> str:
        """What the demo's agent is asked."""
        ...

    def store_path(self, given: str | None, /) -> Path:
        """Where the store is: the option, the setting, or the user's own place."""
        ...

    def open_store(self, given: str | None, /, *, create: bool) -> Store | None:
        """The store; without `create`, None where there is none yet. Raises StoreFailed."""
        ...

    def agent(self, source: Source, /) -> Agent:
        """The agent of that source. Raises DefinitionInvalid."""
        ...

    def self_approval(self, source: Source | None, /) -> bool:
        """Whether the agent's rules, as they are now, let people approve what they asked for themselves."""
        ...

    async def run(
        self, agent: Agent, prompt: str, *, store: Store, task: str, source: Source, live: Live
    ) -> Result:
        """Open a task and run it until it stops, waits, is given back or is taken away."""
        ...

    async def resume(
        self, agent: Agent, task: str, *, store: Store, live: Live, take_from: str | None
    ) -> Result:
        """Run a task on from where its journal ends; `take_from` is a worker that has ended."""
        ...
