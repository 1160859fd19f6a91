"""What the commands need of the rest of the program: one object, made by the composition root (app.py).

Rule: commands know the core, the service and this protocol. Stores, models and agents come through it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fencepost.service.definitions import Source
from fencepost.service.surface import Agent, Live, Result, Store


class ConformanceFinding(Protocol):
    """What became of one rule: "holds", "broken" or "unchecked", and why in one sentence."""

    @property
    def rule(self) -> str:
        """The rule's name."""
        ...

    @property
    def verdict(self) -> str:
        """What became of it."""
        ...

    @property
    def said(self) -> str:
        """Why, in one sentence."""
        ...


class ConformanceReport(Protocol):
    """What a suite found about one tool or model."""

    @property
    def kind(self) -> str:
        """Whether it is a "tool" or a "model"."""
        ...

    @property
    def subject(self) -> str:
        """Its name."""
        ...

    @property
    def findings(self) -> Sequence[ConformanceFinding]:
        """One finding a rule."""
        ...

    @property
    def broken(self) -> Sequence[ConformanceFinding]:
        """The findings whose rule does not hold."""
        ...


class ChaosFinding(Protocol):
    """A rule that does not hold, what was done to see it, and the shortest journal that shows it."""

    @property
    def rule(self) -> str:
        """The rule's name."""
        ...

    @property
    def tool(self) -> str:
        """The tool it is about, "" when it is about none."""
        ...

    @property
    def says(self) -> str:
        """What does not hold, in one sentence."""
        ...

    @property
    def did(self) -> str:
        """The disturbance, as a clause."""
        ...

    @property
    def journal(self) -> Sequence[str]:
        """One line an entry."""
        ...


class ChaosReport(Protocol):
    """What chaos found about one agent."""

    @property
    def agent(self) -> str:
        """Its name."""
        ...

    @property
    def trials(self) -> int:
        """How many runs there were."""
        ...

    @property
    def commits(self) -> int:
        """How many commits an undisturbed run makes."""
        ...

    @property
    def calls(self) -> int:
        """How many calls it starts."""
        ...

    @property
    def findings(self) -> Sequence[ChaosFinding]:
        """What does not hold."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What could not be looked at."""
        ...


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

    def keep_reserve(self, given: str | None, /) -> bool:
        """Whether room is kept beside the store for a pruning on a full disk; makes it where there is plenty."""
        ...

    def give_up_reserve(self, given: str | None, /) -> bool:
        """Whether there was such room; it is free now."""
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

    async def conformance(
        self,
        subject: str,
        *,
        arguments: Mapping[str, Any] | None,
        slow: Mapping[str, Any] | None,
        probe: str | None,
        cut: str | None,
    ) -> ConformanceReport:
        """What the suite for tools, or for models, finds about the subject. Raises DefinitionInvalid."""
        ...

    def chaos(
        self,
        name: str,
        *,
        script: str | None,
        prompt: str | None,
        probe: str | None,
        seconds: float | None,
        tell: Callable[[str], None],
    ) -> ChaosReport:
        """What does not hold of the agent through every disturbance. Raises DefinitionInvalid."""
        ...
