"""The composition root: puts settings, store, agents and commands together. Nothing imports it.

Rule: everything is imported where it is used, so that a command pays only for what it needs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from fencepost.config import Settings
    from fencepost.run.agent import Agent
    from fencepost.run.live import Live
    from fencepost.run.running import Result
    from fencepost.service.definitions import Source
    from fencepost.stores.sqlite import SqliteStore
    from fencepost.testing.chaos import Report as ChaosReport
    from fencepost.testing.conformance import Report

# A command's run holds its task for this long after its last sign of life. Seconds: long enough for a machine
# that stalls, short enough to wait for when nobody can tell whether the process is still there.
LEASE_SECONDS = 15.0
# The one model that needs no key; models behind a network come with their adapters.
PLAYBOOK = "playbook"
INCIDENT_NEEDS = ("prometheus", "logs", "releases")
AGENTS = {
    "incident": "investigate an incident over metrics, logs and releases",
    "demo": "the same on bundled synthetic data (this is what `fencepost demo` runs)",
}


def main() -> None:
    """Run the command line and end the process with its exit code."""
    from fencepost.cli.program import run_program

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the end
    code = run_program(sys.argv[1:], App(os.environ), sys.stdout, sys.stderr)
    _leave(code)


def _leave(code: int) -> None:
    """End with this code; a thread that nobody can stop does not keep the process."""
    if "threading" in sys.modules:
        import threading

        if any(t is not threading.main_thread() and not t.daemon for t in threading.enumerate()):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    sys.exit(code)


class App:
    """The program behind the commands (`cli.application.Application`)."""

    agents: Mapping[str, str] = AGENTS

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment

    @property
    def version(self) -> str:
        """The version of the package."""
        from fencepost import __version__

        return __version__

    @property
    def settings(self) -> Settings:
        """The settings of this environment. Raises DefinitionInvalid."""
        from fencepost.config import read_settings

        return read_settings(self.environment)

    @property
    def debug(self) -> bool:
        """Whether tracebacks are wanted; False while the settings cannot be read."""
        from fencepost.core.errors import DefinitionInvalid

        try:
            return self.settings.debug
        except DefinitionInvalid:
            return False

    @property
    def principal(self) -> str:
        """Who is acting: the user of the operating system, not of the environment, which anyone may set."""
        import pwd

        try:
            return f"local/{pwd.getpwuid(os.getuid()).pw_name}"
        except KeyError:
            return f"local/{os.getuid()}"

    @property
    def demo_prompt(self) -> str:
        """What the demo's agent is asked."""
        from fencepost.agents.incident.agent import DEMO_PROMPT

        return DEMO_PROMPT

    def store_path(self, given: str | None, /) -> Path:
        """Where the store is: the option, the setting, or the user's own place."""
        return self.settings.store if given is None else Path(given)

    def open_store(self, given: str | None, /, *, create: bool) -> SqliteStore | None:
        """The store; without `create`, None where there is none yet. Raises StoreFailed."""
        from fencepost.core.errors import StoreFailed
        from fencepost.stores.sqlite import SqliteStore

        settings = self.settings
        path = settings.store if given is None else Path(given)
        if not create and not path.exists():
            return None
        if given is None and not settings.store_given:
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # a journal holds what tools read
            except OSError as why:
                raise StoreFailed(
                    f"the folder {path.parent} cannot be made ({why.strerror}); set FENCEPOST_STORE to a file"
                ) from why
        return SqliteStore(path)

    def keep_reserve(self, given: str | None, /) -> bool:
        """Whether room is kept beside the store for a pruning on a full disk; makes it where there is plenty."""
        from fencepost.stores.sqlite.reserve import keep_reserve

        return keep_reserve(self.store_path(given))

    def give_up_reserve(self, given: str | None, /) -> bool:
        """Whether there was such room; it is free now."""
        from fencepost.stores.sqlite.reserve import give_up_reserve

        return give_up_reserve(self.store_path(given))

    def agent(self, source: Source, /) -> Agent:
        """The agent of that source. Raises DefinitionInvalid."""
        agent = self._made(source)
        rules = source.option("rules")
        if rules is not None and source.name != "incident":
            from dataclasses import replace

            from fencepost.tools.rules import Rules

            agent = replace(agent, boundary=Rules.load(rules))
        agent.check()
        return agent

    def _made(self, source: Source) -> Agent:
        from fencepost.service import definitions

        if source.name == "demo":
            from fencepost.agents.incident.agent import demo_agent

            return demo_agent(ask=source.option("ask") == "yes")
        if source.name == "incident":
            return _incident(source)
        if ":" not in source.name:
            from fencepost.core.errors import DefinitionInvalid

            if source.name.endswith(".py"):
                raise DefinitionInvalid(
                    f"{source.name} is a file; name the agent in it too, as in {source.name}:agent"
                )
            raise DefinitionInvalid(
                f"there is no agent {source.name!r}; there are {', '.join(AGENTS)}, and your own as"
                " module:attribute or file.py:attribute"
            )
        return definitions.load(source.name)

    def self_approval(self, source: Source | None, /) -> bool:
        """Whether the agent's rules, as they are now, let people approve what they asked for themselves."""
        from fencepost.core.errors import DecisionRefused, FencepostError

        if source is None:
            raise DecisionRefused(
                "the task was opened by a program that did not say where its agent is, so its rules about"
                " approving one's own calls cannot be read; somebody else must decide"
            )
        try:
            return self.agent(source).boundary.self_approval
        except FencepostError as why:
            raise DecisionRefused(
                f"the rules about approving one's own calls cannot be read ({why}); mend that, or let"
                " somebody else decide"
            ) from why

    async def run(
        self, agent: Agent, prompt: str, *, store: Any, task: str, source: Source, live: Live
    ) -> Result:
        """Open a task and run it until it stops, waits, is given back or is taken away."""
        from fencepost.run.running import run
        from fencepost.service.holder import worker_name

        return await run(
            agent,
            prompt,
            store=store,
            principal=self.principal,
            task=task,
            labels=source.labels,
            live=live,
            worker=worker_name(),
            lease_seconds=LEASE_SECONDS,
        )

    async def resume(
        self, agent: Agent, task: str, *, store: Any, live: Live, take_from: str | None
    ) -> Result:
        """Run a task on from where its journal ends; `take_from` is a worker that has ended."""
        from fencepost.run.running import resume
        from fencepost.service.holder import worker_name

        return await resume(
            agent,
            task,
            store=store,
            live=live,
            worker=worker_name(),
            lease_seconds=LEASE_SECONDS,
            take_over=take_from is not None,
            holder=take_from,
        )

    async def conformance(
        self,
        subject: str,
        *,
        arguments: Mapping[str, Any] | None,
        slow: Mapping[str, Any] | None,
        probe: str | None,
        cut: str | None,
    ) -> Report:
        """What the suite for tools, or for models, finds about the subject. Raises DefinitionInvalid."""
        import asyncio

        from fencepost.core.errors import DefinitionInvalid
        from fencepost.ports import Model, Tool
        from fencepost.service.definitions import load_object, named_object
        from fencepost.testing.conformance import check_model, check_tool

        # What a subject leaves behind is a finding; the loop need not complain of it, too.
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        modules: dict[str, ModuleType] = {}  # a probe has to see the very world the tool acts on
        found = load_object(subject, kinds=(Tool, Model), what="tool or model", modules=modules)
        if not isinstance(found, Tool):
            assert isinstance(found, Model)
            if arguments is not None or slow is not None or probe is not None:
                raise DefinitionInvalid(
                    f"{subject} is a model; --arguments, --slow and --probe are for tools"
                )
            other = None if cut is None else load_object(cut, kinds=(Model,), what="model", modules=modules)
            assert other is None or isinstance(other, Model)
            return await check_model(found, cut=other)
        if cut is not None:
            raise DefinitionInvalid(f"{subject} is a tool; --cut is for models")
        asked: Any = None if probe is None else named_object(probe, what="probe", modules=modules)
        if asked is not None and not callable(asked):
            raise DefinitionInvalid(f"{probe} cannot be called; a probe is a function without arguments")
        return await check_tool(found, arguments=arguments, slow=slow, probe=asked)

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
        from fencepost.core.errors import DefinitionInvalid
        from fencepost.service.definitions import Source, absolute, load_object, named_object
        from fencepost.testing.chaos import chaos, read_lines

        modules: dict[str, ModuleType] = {}  # a probe has to see the very world the tools act on
        place = absolute(name)  # rehearsals run in other folders

        def make() -> Agent:
            if ":" not in name:
                return self.agent(Source(name))
            from fencepost.run.agent import Agent

            made = load_object(place, kinds=(Agent,), what="fencepost.Agent", modules=modules)
            assert isinstance(made, Agent)
            made.check()
            return made

        make()  # imported here, before the first rehearsal, so that the others find it imported
        lines = None
        if script is not None:
            lines = read_lines(
                script, lambda place: named_object(absolute(place), what="script", modules=modules)
            )
        asked: Any = None
        if probe is not None:
            asked = named_object(absolute(probe), what="probe", modules=modules)
        if probe is not None and not callable(asked):
            raise DefinitionInvalid(f"{probe} cannot be called; a probe is a function without arguments")
        given: dict[str, Any] = {"prompt": prompt, "seconds": seconds}
        options = {key: value for key, value in given.items() if value is not None}
        return chaos(make, script=lines, probe=asked, tell=tell, **options)


def _incident(source: Source) -> Agent:
    import shlex

    from fencepost.agents.incident.agent import incident_agent
    from fencepost.agents.incident.sources.errors import SourceError
    from fencepost.core.errors import DefinitionInvalid
    from fencepost.tools.rules import Rules

    options = dict(source.options)
    missing = [f"--{name}" for name in INCIDENT_NEEDS if name not in options]
    if missing:
        raise DefinitionInvalid(
            f"the agent incident needs {', '.join(missing)}: a Prometheus URL, a file or folder of JSON-lines"
            " logs, and a git checkout or a JSON-lines change record"
        )
    model = options.get("model", PLAYBOOK)
    if model != PLAYBOOK:
        raise DefinitionInvalid(
            f"the model {model!r} cannot be used: this version has no language-model adapters yet, only"
            f" --model {PLAYBOOK}"
        )
    command = options.get("rollback_command")
    try:
        return incident_agent(
            prometheus=options["prometheus"],
            logs=options["logs"],
            releases=options["releases"],
            rollback_command=None if command is None else shlex.split(command),
            rules=Rules.load(options["rules"]) if "rules" in options else None,
            service_label=options.get("service_label", "service"),
            calls=options.get("calls"),
        )
    except (SourceError, ValueError) as why:
        raise DefinitionInvalid(f"the agent incident cannot be made: {why}") from why
