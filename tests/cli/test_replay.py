"""`fencepost replay`: what it says of a task that would go the same way, of one that would not, and of damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest

from tests.cli.conftest import AGENTS, Command


def test_replay_says_that_a_task_goes_the_same_way_again_and_writes_nothing(fencepost: Command) -> None:
    task = fencepost.run("plain").task
    before = fencepost("show", task, "--json").document
    done = fencepost("replay", task)
    assert done.code == 0, done.err
    assert "replays to the same" in done.out
    assert fencepost("show", task, "--json").document == before


def test_replay_names_the_first_difference_and_ends_with_1(fencepost: Command) -> None:
    task = fencepost.run("plain").task
    done = fencepost("replay", task, "--prompt", "look arounD")
    assert done.code == 1
    assert "entry 1 (Opened), prompt" in done.out
    assert "'look around'" in done.out
    assert "'look arounD'" in done.out
    told = fencepost("replay", task, "--prompt", "look arounD", "--json")
    assert told.code == 1
    assert told.document["same"] is False
    assert told.document["difference"]["place"] == "prompt"


def test_replay_notices_that_the_agent_was_edited(fencepost: Command, tmp_path: Path) -> None:
    moved = tmp_path / "mine.py"
    shutil.copy(AGENTS, moved)
    task = fencepost("run", f"{moved}:plain", "look around").task
    moved.write_text(moved.read_text().replace("Limits(steps=5)", "Limits(steps=6)"))
    done = fencepost("replay", task)
    assert done.code == 1, done.err
    assert "entry 1 (Opened), limits.steps" in done.out
    assert fencepost("replay", task, "--journal-only").code == 0


def test_replay_runs_reads_again_when_told_to(fencepost: Command) -> None:
    task = fencepost.run("plain").task
    told = fencepost("replay", task, "--tools", "read", "--json").document
    assert told["same"]
    assert told["reran"] == 1
    assert fencepost("replay", task, "--tools", "read", "--journal-only").code == 2


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("UPDATE entries SET body = substr(body, 1, length(body) - 1) WHERE seq = 5", "cannot be read"),
        ("UPDATE entries SET v = 2 WHERE seq = 5", "version 2 is not known to this Fencepost"),
        ("UPDATE entries SET kind = 'CallEndec' WHERE seq = 5", "is not known to this Fencepost"),
        ("DELETE FROM entries WHERE seq = 5", "entry 5 is missing"),
    ],
    ids=["cut", "newer", "flipped bit", "missing"],
)
def test_replay_plays_what_comes_before_a_damaged_entry_and_names_it(
    fencepost: Command, damage: str, why: str
) -> None:
    task = fencepost.run("plain").task
    db = apsw.Connection(str(fencepost.store))
    db.execute(damage).fetchall()
    db.close()
    before = fencepost("show", task, "--json").document
    done = fencepost("replay", task)
    assert done.code == 7
    assert "entry 5 of task" in done.err
    assert why in done.err
    assert "the same 4 entries" in done.out
    told = fencepost("replay", task, "--json").document
    assert [one["seq"] for one in told["damaged"]] == [5]
    assert fencepost("show", task, "--json").document == before, "nothing was overwritten"


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        ("all is well there", "all is wall there", 1, "entry 5 (CallEnded), digest"),
        ("I look", "I loot", 7, "their chain head is"),
    ],
    ids=["in a result", "in words of the model"],
)
def test_replay_notices_a_changed_byte_in_an_entry_that_can_be_read(
    fencepost: Command, old: str, new: str, code: int, said: str
) -> None:
    task = fencepost.run("plain").task
    db = apsw.Connection(str(fencepost.store))
    changed = "CAST(replace(CAST(body AS TEXT), ?, ?) AS BLOB)"
    db.execute(f"UPDATE entries SET body = {changed} WHERE kind <> 'Stopped'", (old, new)).fetchall()
    db.close()
    done = fencepost("replay", task)
    assert done.code == code, done
    assert said in done.out + done.err


def test_a_saved_journal_replays_elsewhere_and_is_never_written_over(
    fencepost: Command, tmp_path: Path
) -> None:
    task = fencepost.run("plain").task
    file = tmp_path / "task.jsonl"
    assert fencepost("replay", task, "--save", str(file)).code == 0
    saved = file.read_bytes()
    assert fencepost("replay", task, "--save", str(file)).code == 2
    assert fencepost("replay", task, "--save", str(tmp_path / "task.txt")).code == 2
    assert fencepost("replay", task, "--save", str(tmp_path / "no" / "task.jsonl")).code == 2
    assert file.read_bytes() == saved
    fencepost.store.unlink()
    done = fencepost("replay", str(file), "--json")
    assert (done.code, done.document["same"], done.document["task"]) == (0, True, task)
    assert fencepost("replay", str(file), "--agent", f"{AGENTS}:plain").code == 0
    done = fencepost("replay", str(file), "--agent", f"{AGENTS}:cited")
    assert done.code == 1
    assert "entry 1 (Opened), agent" in done.out


def test_a_damaged_file_is_played_as_far_as_it_is_whole(fencepost: Command, tmp_path: Path) -> None:
    task = fencepost.run("plain").task
    file = tmp_path / "task.jsonl"
    fencepost("replay", task, "--save", str(file))
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:5]) + lines[5][:40])
    done = fencepost("replay", str(file))
    assert done.code == 7
    assert "line 6 of the journal file is cut off" in done.err
    assert "the same 4 entries" in done.out
    file.write_bytes(b"no journal at all\n")
    done = fencepost("replay", str(file))
    assert done.code == 7
    assert "line 1 is not the heading of a journal file" in done.err
    assert fencepost("replay", str(tmp_path / "gone.jsonl")).code == 2


def test_a_pruned_task_is_told_apart_from_one_that_never_was(fencepost: Command) -> None:
    task = fencepost.run("plain").task
    assert fencepost("prune", "--older-than", "0s").code == 0
    done = fencepost("replay", task)
    assert done.code == 5
    assert "was pruned: its journal is gone" in done.err
    assert "there is no task" in fencepost("replay", "task-other").err
