"""The command tree and the one place where an error becomes a sentence and an exit code.

Rule 1: a command's module is imported when the command is used or helped with.
Rule 2: nobody sees a traceback unless FENCEPOST_DEBUG is set; a defect of ours says how to get one.
Rule 3: with `--json` a command that fails prints its error as the document, and the sentence on stderr too.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

import click

if TYPE_CHECKING:
    from fencepost.cli.application import Application

# Where each command is, in the order in which one meets them.
COMMANDS = {
    "demo": "demo:demo",
    "run": "run:run",
    "resume": "run:resume",
    "list": "tasks:list_tasks",
    "show": "tasks:show",
    "watch": "tasks:watch",
    "replay": "replay:replay",
    "cancel": "tasks:cancel",
    "approvals": "approvals:approvals",
    "outcomes": "outcomes:outcomes",
    "prune": "upkeep:prune",
    "doctor": "upkeep:doctor",
    "conformance": "conformance:conformance",
    "chaos": "chaos:chaos",
    "completion": "completion:completion",
}
# What a defect is told as; longer texts are for FENCEPOST_DEBUG.
DEFECT_CHARS = 300
# Options that every command has, and the program itself has not.
COMMON = frozenset({"--json", "--store"})


class Commands(click.Group):
    """The commands, each imported when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, None when there is none."""
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        found = getattr(importlib.import_module(f"fencepost.cli.{module}"), name)
        assert isinstance(found, click.Command)
        return found


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"fencepost {ctx.obj.version}")
        ctx.exit()


@click.command(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Print the version and leave.",
)  # fmt: skip
def program() -> None:
    """Run agents whose every step is a committed fact.

    Start with `fencepost demo`. Every command takes --json, and --store FILE (or FENCEPOST_STORE).
    """


def run_program(arguments: Sequence[str], app: Application, out: TextIO, err: TextIO) -> int:
    """Run one command and return its exit code; whatever went wrong is one sentence on `err`."""
    for stream in (out, err):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")  # an encoding that cannot say a letter still says which
    try:
        code = program.main(list(arguments), prog_name="fencepost", standalone_mode=False, obj=app)
        out.flush()
    except BrokenPipeError:
        _forget(out)
        return 0
    except Exception as why:  # noqa: BLE001 - the one boundary where every error becomes a sentence
        if isinstance(why, OSError):
            _forget(out)
        return _told(why, arguments, app, out, err)
    except KeyboardInterrupt as why:
        return _told(why, arguments, app, out, err)
    return int(code or 0)


def _told(why: BaseException, arguments: Sequence[str], app: Application, out: TextIO, err: TextIO) -> int:
    if isinstance(why, click.exceptions.NoArgsIsHelpError):
        why.show(err)
        return 2
    from fencepost.cli.documents import error_document
    from fencepost.cli.page import page_for
    from fencepost.cli.text import document

    code, sentence = _sentence(why, app)
    if app.debug:
        import traceback

        page_for(err, app.environment).line("".join(traceback.format_exception(why)))
    page_for(err, app.environment).line(("fencepost: ", "bad"), sentence)
    if "--json" in arguments:
        page_for(out, app.environment).raw(document(error_document(why, sentence)))
    return code


def _sentence(why: BaseException, app: Application) -> tuple[int, str]:
    from fencepost.cli.exits import Exit, exit_of_error
    from fencepost.core.errors import FencepostError

    match why:
        case click.exceptions.Abort() | KeyboardInterrupt():
            return Exit.INTERRUPTED, "interrupted; what was committed stays"
        case click.UsageError():
            where = why.ctx.command_path if why.ctx is not None else "fencepost"
            if isinstance(why, click.NoSuchOption) and why.option_name in COMMON and where == "fencepost":
                example = "as in `fencepost list --json`"
                return Exit.USAGE, f"{why.option_name} stands after the command, {example}"
            return Exit.USAGE, f"{_one_line(why.format_message())} (see `{where} --help`)"
        case click.ClickException():
            return Exit.USAGE, _one_line(why.format_message())
        case OSError() if why.filename is None:
            return (
                Exit.OUTPUT,
                f"the output cannot be written ({why.strerror or why}); what was done stays done",
            )
        case FencepostError():
            return exit_of_error(why), _one_line(str(why))
        case _:
            said = _one_line(f"{type(why).__name__}: {why}")[:DEFECT_CHARS]
            hint = "" if app.debug else "; run again with FENCEPOST_DEBUG=1 and report what it prints"
            return Exit.INTERNAL, f"a defect in Fencepost: {said}{hint}"


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _forget(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)
