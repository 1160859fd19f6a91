"""Ctrl-C, SIGTERM, SIGHUP, SIGKILL and a second terminal: what becomes of the task, and the exit codes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import AGENTS, PATIENCE, Command, Terminal, heard


@pytest.fixture
def waiting(fencepost: Command) -> Iterator[Terminal]:
    """A task on a terminal whose tool waits for ever."""
    terminal = Terminal(fencepost, "run", f"{AGENTS}:waits", "wait")
    terminal.until("waiting now")
    yield terminal
    terminal.close()


def state(fencepost: Command) -> str:
    """The state of the only task."""
    (task,) = fencepost("list", "--json").document["tasks"]
    return str(task["state"])


def test_ctrl_c_once_cancels_the_task_and_keeps_its_journal(fencepost: Command, waiting: Terminal) -> None:
    waiting.press("\x03")
    assert waiting.end() == 4
    assert "Cancelling the task; its journal stays." in waiting.seen
    shown = fencepost("show", "task", "--json").document
    assert shown["task"]["state"] == "CANCELLED"
    assert shown["entries"][-1]["kind"] == "Stopped"
    assert shown["entries"][-1]["by"] == shown["task"]["requester"]
    assert f"fencepost show {shown['task']['id']}" in waiting.seen


def test_the_cursor_is_shown_again_after_ctrl_c(waiting: Terminal) -> None:
    waiting.press("\x03")
    waiting.end()
    assert waiting.seen.rfind("\x1b[?25h") > waiting.seen.rfind("\x1b[?25l") >= 0


def test_ctrl_c_twice_leaves_at_once_even_where_a_thread_hangs(fencepost: Command) -> None:
    terminal = Terminal(fencepost, "run", f"{AGENTS}:hangs", "hang")
    try:
        terminal.until("hanging now")
        terminal.press("\x03")
        terminal.until("It is CANCELLED; nothing of it starts from now on.")
        terminal.press("\x03")
        assert terminal.end() == 130
        assert "left at once" in terminal.seen
        assert terminal.seen.rfind("\x1b[?25h") > terminal.seen.rfind("\x1b[?25l")
    finally:
        terminal.close()
    assert state(fencepost) == "CANCELLED"


def test_a_thread_that_hangs_does_not_keep_a_cancelled_run(fencepost: Command) -> None:
    process = fencepost.start("run", f"{AGENTS}:hangs", "hang")
    heard(process, "hanging now")
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 4
    assert state(fencepost) == "CANCELLED"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_process_that_is_told_to_end_gives_its_task_back(
    fencepost: Command, number: signal.Signals, code: int
) -> None:
    process = fencepost.start("run", f"{AGENTS}:waits", "wait")
    heard(process, "waiting now")
    process.send_signal(number)
    assert process.wait(PATIENCE) == code
    assert process.stdout is not None
    assert "fencepost resume task-" in process.stdout.read()
    assert state(fencepost) == "READY_TO_RESUME"


def test_cancel_in_a_second_terminal_ends_the_run_in_the_first(fencepost: Command) -> None:
    process = fencepost.start("run", f"{AGENTS}:waits", "wait")
    heard(process, "waiting now")
    assert fencepost("cancel", "task").code == 0
    assert process.wait(PATIENCE) == 4
    assert state(fencepost) == "CANCELLED"


def test_a_task_whose_process_was_killed_is_resumed_at_once_on_the_same_host(fencepost: Command) -> None:
    killed = fencepost.process("run", f"{AGENTS}:dies", "look")
    assert killed.code == -signal.SIGKILL
    assert "RUNNING (its process ended)" in fencepost("list").out
    assert (
        "the process that ran it has ended; go on with: fencepost resume task-"
        in fencepost("show", "task").out
    )
    assert fencepost("show", "task", "--json").document["task"]["orphaned"] is True
    resumed = fencepost("resume", "task")
    assert resumed.code == 0, resumed.err
    assert "survived" in resumed.out
    assert "1.0 look_and_die  started again (start 2), same key" in resumed.err


def test_a_task_that_another_process_runs_is_not_taken_and_its_holder_is_named(fencepost: Command) -> None:
    process = fencepost.start("run", f"{AGENTS}:waits", "wait")
    heard(process, "waiting now")
    refused = fencepost("resume", "task")
    assert refused.code == 6
    assert f"is held by worker {os.uname().nodename}:{process.pid}:" in refused.err
    assert "until 20" in refused.err
    assert state(fencepost) == "RUNNING"


def test_watch_follows_a_task_of_another_process_to_its_end(fencepost: Command) -> None:
    process = fencepost.start("run", f"{AGENTS}:waits", "wait")
    heard(process, "waiting now")
    watcher = fencepost.start("watch", "task")
    assert watcher.stdout is not None
    first = watcher.stdout.readline()
    assert "opened by" in first
    fencepost("cancel", "task")
    rest = watcher.stdout.read()
    assert "stopped by" in rest
    assert watcher.wait(PATIENCE) == 4
    assert process.wait(PATIENCE) == 4


def test_ctrl_c_in_a_command_that_only_reads_ends_it_with_130(fencepost: Command) -> None:
    process = fencepost.start("run", f"{AGENTS}:waits", "wait")
    heard(process, "waiting now")
    watcher = fencepost.start("watch", "task")
    assert watcher.stdout is not None
    watcher.stdout.readline()
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait(PATIENCE) == 130
    assert watcher.stderr is not None
    assert watcher.stderr.read().lstrip() == "fencepost: interrupted; what was committed stays\n"
    assert state(fencepost) == "RUNNING"


def test_a_reader_that_goes_away_ends_the_output_quietly(fencepost: Command) -> None:
    fencepost.run("plain")
    process = fencepost.start("show", "task", "--full")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    assert process.wait(PATIENCE) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""


def test_a_run_whose_watcher_goes_away_is_carried_to_its_end(fencepost: Command, tmp_path: Path) -> None:
    process = fencepost.start("run", f"{AGENTS}:plain", "look")
    assert process.stderr is not None
    process.stderr.close()
    process.stderr = None
    assert process.wait(PATIENCE) == 0
    assert state(fencepost) == "SUCCEEDED"
