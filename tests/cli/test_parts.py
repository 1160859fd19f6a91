"""The parts behind the commands: whether a holder is gone, settings, where agents are from, exit codes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.app import App
from fencepost.cli.exits import Exit, exit_of_error, exit_of_state
from fencepost.cli.program import run_program
from fencepost.config import read_settings
from fencepost.core import errors
from fencepost.core.lifecycle import TaskState
from fencepost.service.definitions import Source, absolute, source_of
from fencepost.service.holder import is_gone, parse_worker, this_process, worker_name
from fencepost.stores.sqlite import SqliteStore
from tests.cli.agents_for_tests import plain
from tests.cli.conftest import ROOT

NAME = "from fencepost.service.holder import worker_name; print(worker_name(), flush=True)"


def name_of_another_process(*, then: str) -> tuple[subprocess.Popen[str], str]:
    """A process and its name as a worker."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{NAME}; {then}"], env={"PYTHONPATH": str(ROOT / "src")}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_process_that_is_there_is_not_gone_and_one_that_ended_is() -> None:
    process, name = name_of_another_process(then="input()")
    assert not is_gone(name)
    process.communicate("\n")
    assert is_gone(name)
    assert not is_gone(worker_name())


def test_a_process_that_ended_and_was_not_waited_for_is_gone() -> None:
    process, name = name_of_another_process(then="")
    assert process.stdout is not None
    assert process.stdout.read() == ""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(name), "a zombie holds nothing"
    process.communicate()


def test_a_number_that_was_used_again_is_another_process() -> None:
    host, number, token = worker_name().split(":")
    namespace, start, boot, rest = token.split("-")
    assert is_gone(f"{host}:{number}:{namespace}-{int(start) - 1}-{boot}-{rest}")
    assert is_gone(f"{host}:{number}:{namespace}-{start}-00000000-{rest}"), "an earlier boot of this host"


def test_nobody_judges_a_process_of_another_host_or_namespace_or_name() -> None:
    host, _, token = worker_name().split(":")
    namespace, rest = token.split("-", 1)
    assert not is_gone(f"elsewhere:1:{token}")
    assert not is_gone(f"{host}:999999999:{int(namespace) + 1}-{rest}")
    assert not is_gone("w1")
    assert not is_gone("")


def test_a_worker_of_the_library_is_judged_by_its_number_alone() -> None:
    host = os.uname().nodename
    assert not is_gone(f"{host}:{os.getpid()}:abc123")
    assert is_gone(f"{host}:999999999:abc123")


def test_where_nothing_can_be_known_nobody_is_gone(tmp_path: Path) -> None:
    assert this_process(tmp_path) is None
    assert not is_gone(f"{os.uname().nodename}:999999999:abc123", tmp_path)
    assert parse_worker(worker_name(tmp_path)) is not None


def test_a_task_remembers_where_its_agent_is_from() -> None:
    source = Source("incident", (("logs", "/var/log/x"), ("rules", "/etc/rules.toml")))
    opened = plain().opened("x", "local/me", source.labels)
    assert source_of(opened) == source
    assert source_of(plain().opened("x", "local/me")) is None


def test_a_file_is_remembered_by_its_whole_path() -> None:
    assert absolute("mine.py:agent") == f"{Path.cwd()}/mine.py:agent"
    assert absolute("package.mine:agent") == "package.mine:agent"
    assert absolute("incident") == "incident"


def test_settings_are_read_from_the_environment_alone() -> None:
    given = read_settings({"FENCEPOST_STORE": "/tmp/x.db", "FENCEPOST_DEBUG": "1"})
    assert (str(given.store), given.store_given, given.debug) == ("/tmp/x.db", True, True)
    own = read_settings({"HOME": "/home/me", "XDG_STATE_HOME": "relative"})
    assert (str(own.store), own.store_given, own.debug) == (
        "/home/me/.local/state/fencepost/fencepost.db", False, False,
    )  # fmt: skip


def test_variables_that_others_read_under_our_prefix_are_let_be() -> None:
    read_settings(
        {"HOME": "/h", "FENCEPOST_IDEMPOTENCY_KEY": "x", "FENCEPOST_DATA": "/d", "FENCEPOST_REQUIRE": ""}
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.DefinitionInvalid("x"), Exit.USAGE),
        (errors.LimitsInvalid("x"), Exit.USAGE),
        (errors.RulesInvalid("x"), Exit.USAGE),
        (errors.TaskNotFound("x"), Exit.NOT_FOUND),
        (errors.TaskConflict("x"), Exit.CONFLICT),
        (errors.Fenced("x"), Exit.CONFLICT),
        (errors.DecisionRefused("x"), Exit.REFUSED),
        (errors.StoreBusy("x"), Exit.STORE),
        (errors.StoreCorrupt("x"), Exit.STORE),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
        (RuntimeError("x"), Exit.INTERNAL),
    ],
)
def test_an_error_has_one_exit_code(error: BaseException, code: Exit) -> None:
    assert exit_of_error(error) is code


def test_every_state_has_an_exit_code() -> None:
    assert [int(exit_of_state(state)) for state in TaskState] == [9, 6, 3, 9, 0, 1, 4]


class Defective(App):
    """The program with a defect."""

    def open_store(self, given: str | None, /, *, create: bool) -> SqliteStore | None:
        message = "this cannot be \x1b[2J"
        raise RuntimeError(message)


def test_a_defect_of_ours_is_one_sentence_that_says_how_to_report_it() -> None:
    out, err = io.StringIO(), io.StringIO()
    assert run_program(["list"], Defective({"HOME": "/nowhere"}), out, err) == 70
    assert err.getvalue() == (
        "fencepost: a defect in Fencepost: RuntimeError: this cannot be \\u001b[2J; run again with"
        " FENCEPOST_DEBUG=1 and report what it prints\n"
    )
