"""`python -m fencepost.testing.crash`: the real main, killed or stopped at a named place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.testing import crash, pauses
from fencepost.testing.pauses import Crashed, Pauses, Place
from tests.crash.payments import ANSWER_OF_READS

ROOT = Path(__file__).parents[2]
PAYMENTS = ("--main", "tests.crash.payments:main")


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fencepost.testing.crash", *arguments],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str) -> tuple[int, str, str]:
    process = start(*arguments)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_count_runs_on_and_lists_every_place(tmp_path: Path) -> None:
    code, out, err = run("count", *PAYMENTS, "--", str(tmp_path), "--reads")
    assert (code, json.loads(out)["text"]) == (0, ANSWER_OF_READS)
    places = json.loads(err)["places"]
    commits = [place for place in places if place.startswith("inside:")]
    assert commits == [f"inside:{n}" for n in range(1, len(commits) + 1)]
    assert "stock.effect.after:3" in places


def test_the_command_is_killed_where_it_was_told_to_be_and_the_next_one_carries_on(tmp_path: Path) -> None:
    for place in ("before:3", "inside:4", "append.after:2", "stock.effect.before:2"):
        folder = tmp_path / place.partition(":")[0]
        folder.mkdir()
        code, out, _ = run(place, *PAYMENTS, "--", str(folder), "--reads")
        assert (code, out) == (-signal.SIGKILL, "")
        _, out, _ = run("before:99", *PAYMENTS, "--", str(folder), "--reads")
        assert json.loads(out)["text"] == ANSWER_OF_READS


def test_a_place_that_is_not_reached_changes_nothing_and_the_exit_code_is_the_commands(
    tmp_path: Path,
) -> None:
    code, _, err = run("before:99", "--main", "tests.crash.test_crash_command:exits", "--", "7")
    assert (code, err) == (7, "")
    assert run("before:99", "--main", "tests.crash.test_crash_command:exits", "--", "text")[0] == 1
    assert run("before:99", "--main", "tests.crash.test_crash_command:exits", "--")[0] == 0


def exits() -> None:
    arguments = sys.argv[1:]
    if arguments:
        sys.exit(int(arguments[0]) if arguments[0].isdigit() else arguments[0])


def test_a_process_told_to_stop_goes_on_when_it_is_continued(tmp_path: Path) -> None:
    process = start("stop@after:3", *PAYMENTS, "--", str(tmp_path), "--reads")
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.kill(process.pid, signal.SIGCONT)
    out, _ = process.communicate(timeout=60)
    assert json.loads(out)["text"] == ANSWER_OF_READS


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "usage:"),
        (("before:1",), "usage:"),
        (("--", "demo"), "usage:"),
        (("before", "--"), "written POINT:N"),
        (("before:0", "--"), "written POINT:N"),
        (("before:x", "--"), "written POINT:N"),
        (("pause@before:1", "--"), "is kill or stop"),
        (("before:1", "--man", "a:b", "--"), "PLACE [--main MODULE:FUNCTION]; got --man a:b"),
        (("before:1", "--main", "a.b", "--"), "PLACE [--main MODULE:FUNCTION]; got --main a.b"),
    ],
)
def test_a_wrong_command_line_is_told_how_to_be_right(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert crash.main(arguments) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "usage: python -m fencepost.testing.crash" in err


def test_a_place_is_written_as_it_is_read() -> None:
    for text in ("before:3", "append.after:1", "stop@inside:2"):
        assert str(Place.parse(text)) == text
    assert Place.parse("kill@before:1") == Place("before", 1, "kill")


def test_commits_are_counted_together_and_by_name_and_heartbeats_only_by_name() -> None:
    hooks = Pauses()
    for point in ("open_task.before", "append.before", "beat.before", "append.before", "mine.before"):
        hooks(point)
    assert (hooks.count("before"), hooks.count("append.before"), hooks.count("beat.before")) == (3, 2, 1)
    assert [str(place) for place in hooks.places()] == ["before:1", "before:2", "before:3", "mine.before:1"]
    assert hooks.reached == [
        "open_task.before",
        "append.before",
        "beat.before",
        "append.before",
        "mine.before",
    ]


def test_what_was_planned_happens_at_its_place_and_only_there() -> None:
    hooks = Pauses(Place("before", 2), pauses.crash)
    hooks("append.before")
    hooks("append.after")
    hooks("beat.before")
    with pytest.raises(Crashed):
        hooks("release.before")
    hooks("append.before")


def test_an_unknown_action_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="dance"):
        Pauses(Place("x", 1, "dance"))("x")
