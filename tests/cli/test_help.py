"""docs/cli.md says what the program does: help, exit codes and JSON shapes are compared with it."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from fencepost import __version__
from fencepost.cli.documents import error_document
from fencepost.cli.exits import Exit
from fencepost.cli.program import program
from fencepost.core.errors import (
    DecisionRefused,
    DefinitionInvalid,
    Fenced,
    FencepostError,
    JsonInvalid,
    LimitsInvalid,
    RulesInvalid,
    StoreFailed,
    TaskConflict,
    TaskNotFound,
)
from tests.cli.conftest import ROOT, Command

PAGE = ROOT / "docs" / "cli.md"


def paths(
    command: click.Command = program, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with the words that lead to it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from paths(found, (*path, name))


LEAVES = [path for path, command in paths() if not isinstance(command, click.Group)]


def help_of(*path: str) -> str:
    """What the program says about a command, at 80 columns."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        program.main([*path, "--help"], prog_name="fencepost", standalone_mode=False, terminal_width=80)
    return out.getvalue()


def helps_on_the_page() -> dict[tuple[str, ...], str]:
    """The help texts of the page by command."""
    blocks = re.findall(r"```text\n\$ fencepost(.*?) --help\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return {tuple(words.split()): text for words, text in blocks}


@pytest.mark.parametrize(
    "path", [path for path, _ in paths()], ids=lambda path: " ".join(path) or "fencepost"
)
def test_every_command_has_help_and_the_page_shows_it(path: tuple[str, ...]) -> None:
    told = help_of(*path)
    assert "Usage: fencepost" in told
    assert len(told.splitlines()) > 4
    assert helps_on_the_page().get(path) == told, "docs/cli.md shows an older help of this command"


def test_the_page_shows_no_command_that_does_not_exist() -> None:
    assert set(helps_on_the_page()) == {path for path, _ in paths()}


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_takes_json_and_a_store(path: tuple[str, ...]) -> None:
    (command,) = [command for at, command in paths() if at == path]
    taken = {name for parameter in command.params for name in parameter.opts}
    assert {"--json", "--store"} <= taken
    assert all(p.help for p in command.params if isinstance(p, click.Option)), "an option without help"


def test_the_page_has_the_table_of_exit_codes() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    source = Path(ROOT, "src/fencepost/cli/exits.py").read_text()
    meant = re.findall(r"^    (\w+) = (\d+)  # (.+)$", source, re.MULTILINE)
    assert [(name, number, words) for number, name, words in rows] == [
        (name, number, words) for name, number, words in meant
    ]
    assert {name for name, _, _ in meant} == {code.name for code in Exit}


def test_the_page_has_every_error_code_that_a_command_can_end_with() -> None:
    (table,) = re.findall(r"^### Error codes\n\n((?:\|[^\n]*\n)+)", PAGE.read_text(), re.MULTILINE)
    raised: list[type[FencepostError]] = [
        DefinitionInvalid, LimitsInvalid, RulesInvalid, JsonInvalid,
        TaskNotFound, TaskConflict, DecisionRefused, Fenced, StoreFailed,
    ]  # fmt: skip
    raised += StoreFailed.__subclasses__()
    codes = {one.code for one in raised} | {
        error_document(why, "")["error"]["code"]
        for why in (click.UsageError(""), KeyboardInterrupt(), BrokenPipeError(), ZeroDivisionError())
    }
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == codes
    assert len(codes) == len(raised) + 4


def shapes_on_the_page() -> dict[str, set[str]]:
    """The documented documents by name, each with its fields."""
    found = {}
    for name, table in re.findall(
        r"^#### `(\w+)`\n\n.*?\n\n((?:\|[^\n]*\n)+)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    ):
        found[name] = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    return found


def test_the_documents_have_the_fields_the_page_says(fencepost: Command) -> None:
    task = fencepost.run("asks").task
    shown = fencepost("show", task, "--json").document
    approvals = fencepost("approvals", "list", "--json").document["approvals"]
    cited = fencepost.run("cited", "--json").document
    fencepost("cancel", task)
    pruned = fencepost("prune", "--older-than", "0s", "--json").document["pruned"]
    seen: dict[str, Any] = {
        "tombstone": pruned[0],
        "task": shown["task"], "used": shown["task"]["used"], "entry": shown["entries"][0],
        "question": approvals[0], "answer": cited["answer"], "claim": cited["answer"]["claims"][0],
        "ending": cited, "reading": shown,
    }  # fmt: skip
    shapes = shapes_on_the_page()
    assert {name: set(document) for name, document in seen.items()} == {name: shapes[name] for name in seen}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (("list",), {"tasks", "more"}),
        (("approvals", "list"), {"approvals"}),
        (("outcomes", "list"), {"outcomes"}),
        (("cancel", "task"), {"task", "changed"}),
        (("approvals", "approve", "task", "1.0"), {"task", "call", "decision", "question"}),
        (("approvals", "reject", "task", "1.0"), {"task", "call", "decision", "question"}),
        (("prune",), {"pruned", "freed_bytes", "stored_bytes", "dry_run"}),
        (("doctor",), {"ok", "checks"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_every_command_prints_one_document_with_json(
    fencepost: Command, path: tuple[str, ...], fields: set[str]
) -> None:
    fencepost.run("asks")
    done = fencepost(*path, "--json")
    assert done.code == 0, done.err
    assert set(done.document) == fields


def test_watch_with_json_prints_one_document_a_line_and_the_task_last(fencepost: Command) -> None:
    fencepost.run("plain")
    lines = [json.loads(line) for line in fencepost("watch", "task", "--json").out.splitlines()]
    assert [set(line) for line in lines] == [{"entry"}] * (len(lines) - 1) + [{"task"}]
    assert [line["entry"]["seq"] for line in lines[:-1]] == list(range(1, len(lines)))
    assert lines[-1]["task"]["state"] == "SUCCEEDED"


def test_version_is_printed_without_loading_what_it_does_not_need(fencepost: Command) -> None:
    script = (
        "import sys; sys.argv = ['fencepost', '--version']\n"
        "from fencepost.app import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print(end.code)\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}\n"
        "             & {'apsw', 'rich', 'msgspec', 'asyncio', 'httpx2', 'ssl', 'json'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=fencepost.environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [f"fencepost {__version__}", "0", "[]"]


@pytest.mark.parametrize("module", ["approvals", "cancel", "resume", "list"])
def test_help_opens_no_store(fencepost: Command, module: str) -> None:
    assert fencepost(module, "--help").code == 0
    assert list(fencepost.folder.iterdir()) == []
