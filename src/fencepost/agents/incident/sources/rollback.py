"""The one tool that changes the world: it runs the rollback command that the operator configured.

Rules of this file:
- The command is a list of arguments, started without a shell. `{service}` and `{release}` stand for whole
  arguments only, so a value can neither add an argument nor change another one.
- Values are names: letters, digits, `.`, `_`, `/`, `-`, at most 128; a leading `-` would be an option.
- The runtime's idempotency key is in the command's environment: a command can use it to do nothing twice.
- A command that was stopped before its end has an unknown outcome; it is never started again from here.
- The command does not outlive the worker that started it, so that nothing goes on while people are asked what
  became of it (process.py says where this ends).
"""

from __future__ import annotations

import os
import re
from typing import Any

import msgspec

from fencepost.agents.incident.sources.errors import OutcomeUnknown, Refused, Unusable
from fencepost.agents.incident.sources.process import TimedOut, run_program
from fencepost.agents.incident.sources.window import shown

VALUE = re.compile(r"[A-Za-z0-9._/][A-Za-z0-9._/-]{0,127}")
PLACEHOLDERS = ("{service}", "{release}")
KEY_VARIABLE = "FENCEPOST_IDEMPOTENCY_KEY"
ERROR_CHARS_SHOWN = 500  # of a failed command's words: the end, where tools say why


class RollbackConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The command to run, e.g. `("deploy", "rollback", "{service}", "--to", "{release}")`."""

    command: tuple[str, ...]
    services: tuple[str, ...] = ()  # the only ones it may touch; empty: any name of the right form
    seconds: float = 120.0  # a deployment that takes longer is watched elsewhere
    output_bytes: int = 16 * 1024  # what a person reads of it
    environment: tuple[str, ...] = ("PATH", "HOME", "LANG", "KUBECONFIG")  # passed on; nothing else is


class RollbackCommand:
    """Rolls one service back to one release, by the configured command."""

    def __init__(self, config: RollbackConfig) -> None:
        _check(config)
        self._config = config

    @property
    def seconds(self) -> float:
        """How long the command may run."""
        return self._config.seconds

    def argv(self, service: str, release: str) -> tuple[str, ...]:
        """The exact arguments that would be started; `Refused` when a value is not a plain name."""
        for name, value in (("service", service), ("release", release)):
            if not VALUE.fullmatch(value):
                raise Refused(
                    f"{name} {shown(value)} is no name: use letters, digits and . _ / - (at most 128, "
                    "not starting with -)."
                )
        if self._config.services and service not in self._config.services:
            raise Refused(f"Service {shown(service)} may not be rolled back from here; ask an operator.")
        values = {"{service}": service, "{release}": release}
        return tuple(values.get(argument, argument) for argument in self._config.command)

    async def run(self, service: str, release: str, *, key: str) -> dict[str, Any]:
        """The command ended well; the answer has `command`, `exit_code`, `stdout`, `stderr` and `cut`.

        Raises `Unusable` when it says that it failed, `OutcomeUnknown` when it was stopped at its deadline.
        """
        argv = self.argv(service, release)
        config = self._config
        passed = {name: os.environ[name] for name in config.environment if name in os.environ}
        try:
            ended = await run_program(
                argv,
                seconds=config.seconds,
                output_bytes=config.output_bytes,
                environment={**passed, KEY_VARIABLE: key},
                dies_with_us=True,
            )
        except TimedOut:
            raise OutcomeUnknown(
                f"{argv[0]!r} was stopped after {config.seconds:g} s; check by hand whether {service} "
                f"now runs {release} before anything is started again."
            ) from None
        stdout, stderr = (b.decode("utf-8", "replace") for b in (ended.stdout, ended.stderr))
        if ended.exit_code < 0:
            raise OutcomeUnknown(
                f"{argv[0]!r} was killed by signal {-ended.exit_code}; check by hand whether {service} "
                f"now runs {release}."
            )
        if ended.exit_code != 0:
            words = " ".join((stderr or stdout).split())[-ERROR_CHARS_SHOWN:]
            raise Unusable(f"{argv[0]!r} ended with exit code {ended.exit_code}: {words or 'no message'}")
        return {
            "command": list(argv),
            "exit_code": ended.exit_code,
            "stdout": stdout,
            "stderr": stderr,
            "cut": ended.cut,
        }


def _check(config: RollbackConfig) -> None:
    if not config.command or not config.command[0]:
        raise Refused(
            "The rollback command is empty; name the program and its arguments in the configuration."
        )
    for argument in config.command:
        if argument not in PLACEHOLDERS and any(p in argument for p in PLACEHOLDERS):
            raise Refused(
                f"{shown(argument)} has a placeholder inside; only whole arguments may be placeholders."
            )
    if config.command[0] in PLACEHOLDERS:
        raise Refused("The rollback program itself cannot be a placeholder; name it in the configuration.")
    for placeholder in PLACEHOLDERS:
        if placeholder not in config.command:
            raise Refused(f"The rollback command has no {placeholder}; it would not know what to roll back.")
