"""`list` and `show`: what a person and a program read of tasks."""

from __future__ import annotations

import asyncio
import io

import apsw
import pytest

from fencepost.cli.page import Page
from fencepost.cli.tables import task_lines
from fencepost.stores.sqlite import SqliteStore
from tests.cli.conftest import Command, Done


@pytest.fixture
def ran(fencepost: Command) -> Done:
    done = fencepost.run("cited")
    assert done.code == 0, done.err
    return done


def test_a_run_prints_its_answer_with_the_evidence_of_each_claim(ran: Done) -> None:
    assert "  It is fine.\n  (uncited prose; what is tied to evidence follows)\n" in ran.out
    assert '  • all is well here\n      ev-1.0 /seen = "all is well there"\n' in ran.out
    assert "Stopped  COMPLETED" in ran.out
    assert f"fencepost show {ran.task}" in ran.out


def test_steps_are_told_on_stderr_as_they_are_committed(ran: Done) -> None:
    told = ran.err.splitlines()
    assert told[1:] == [
        "step 1  asks by-step",
        '  1.0 look {"place":"here"}',
        "  1.0 look  ok  ev-1.0  43 B",
        '      {"place":"here","seen":"all is well there"}',
        "step 2  asks by-step",
        "  answers with 1 claim",
        "stopped: COMPLETED",
    ]


def test_quiet_says_nothing_before_the_end(fencepost: Command) -> None:
    assert fencepost.run("plain", "--quiet").err == ""


def test_show_tells_steps_calls_results_evidence_budgets_and_why_it_stopped(
    fencepost: Command, ran: Done
) -> None:
    shown = fencepost("show", ran.task).out
    for words in (
        f"{ran.task}  SUCCEEDED", "agent    cited, model by-step", "prompt   look around",
        '   3    1.0 look {"place":"here"}', "   5    1.0 look  ok  ev-1.0  43 B", "Answer",
        '      ev-1.0 /seen = "all is well there"', "  steps   2/5                 ████░░░░░░",
        "  calls   1/50                █░░░░░░░░░", "  cost    <0.0001             no limit",
        "Stopped  COMPLETED",
    ):  # fmt: skip
        assert words in shown, f"{words!r} is not in:\n{shown}"


def test_show_as_json_is_the_whole_journal(fencepost: Command, ran: Done) -> None:
    document = fencepost("show", ran.task, "--json").document
    assert [entry["seq"] for entry in document["entries"]] == list(range(1, document["task"]["entries"] + 1))
    assert document["entries"][0]["kind"] == "Opened"
    assert document["entries"][-1]["kind"] == "Stopped"
    assert document["answer"]["claims"] == [
        {"text": "all is well here", "evidence_id": "ev-1.0", "pointer": "/seen",
         "value": "all is well there", "quote": None}
    ]  # fmt: skip
    assert document["limits"]["steps"] == 5
    assert document["damaged"] == document["late"] == document["questions"] == []
    assert document["task"]["used"]["calls"] == 1


def test_a_long_result_is_cut_with_a_note_and_whole_with_full(fencepost: Command) -> None:
    fencepost.run("asks_evil")
    fencepost("approvals", "approve", "task", "1.0", "--resume")
    cut, full = fencepost("show", "task").out, fencepost("show", "task", "--full").out
    assert " characters)" in cut
    assert "wrote \\u001b[2J" in full
    assert "x" * 3000 + '"' in cut, "arguments are whole, full or not"
    assert "x" * 3000 + "\n" in full


def test_a_task_that_crossed_a_limit_ends_with_1_and_says_which(fencepost: Command) -> None:
    done = fencepost.run("out_of_steps")
    assert done.code == 1
    assert "FAILED (MAX_STEPS_EXHAUSTED)" in done.out
    assert "steps 1/1" in done.out


def test_a_model_that_cannot_be_asked_is_told_with_its_own_words(fencepost: Command) -> None:
    done = fencepost.run("unreachable")
    assert done.code == 1
    assert "Stopped  LLM_ERROR" in done.out
    assert "because  ModelFailed: no route to \\u001b[2J" in done.out
    assert "because  ModelFailed: no route to" in fencepost("show", "task").out


def test_list_shows_the_newest_first_and_filters(fencepost: Command) -> None:
    first, second = fencepost.run("plain").task, fencepost.run("asks").task
    assert [line.split()[0] for line in fencepost("list").out.splitlines()] == [second, first]
    waiting = fencepost("list", "--state", "waiting_approval", "--json").document
    assert [task["id"] for task in waiting["tasks"]] == [second]
    assert waiting["more"] is False
    assert [task["id"] for task in fencepost("list", "--agent", "plain", "--json").document["tasks"]] == [
        first
    ]
    limited = fencepost("list", "--limit", "1", "--json").document
    assert [task["id"] for task in limited["tasks"]] == [second]
    assert limited["more"] is True


def test_list_without_a_store_is_empty_and_makes_none(fencepost: Command) -> None:
    done = fencepost("list")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith(f"there is no store at {fencepost.store} yet, so there are no tasks;")
    assert fencepost("list", "--json").document == {"tasks": [], "more": False}
    assert not fencepost.store.exists()


@pytest.mark.parametrize("width", [60, 140])
def test_a_list_fits_a_terminal_that_is_narrow_or_wide(fencepost: Command, width: int) -> None:
    fencepost.run("plain", prompt="a long prompt " * 40)

    async def rows() -> str:
        store = SqliteStore(fencepost.store)
        found = await store.tasks("local")
        stream = io.StringIO()
        now = await store.now()
        Page(stream, width=width, color=False).put(task_lines(found, now=now, width=width))
        await store.close()
        return stream.getvalue()

    printed = asyncio.run(rows())
    assert all(len(row) <= width for row in printed.splitlines())
    assert len(printed.splitlines()) == (3 if width == 60 else 1)
    assert "a long prompt" in printed
    assert "…" in printed


def test_an_id_may_be_cut_short_as_long_as_it_fits_one_task(fencepost: Command, ran: Done) -> None:
    digits = ran.task.removeprefix("task-")
    assert fencepost("show", digits[:6]).out == fencepost("show", ran.task[:11]).out != ""
    fencepost.run("plain")
    both = fencepost("show", "task-")
    assert both.code == 5
    assert "fits 2 tasks" in both.err


def test_an_unknown_id_gets_one_sentence(fencepost: Command, ran: Done) -> None:
    for command in (
        ("show", "nope"),
        ("watch", "nope"),
        ("cancel", "nope"),
        ("resume", "nope"),
        ("approvals", "approve", "nope", "1.0"),
        ("outcomes", "resolve", "nope", "1.0", "happened"),
    ):
        done = fencepost(*command)
        assert done.code == 5
        assert done.err == "fencepost: there is no task 'nope'; `fencepost list` shows which there are\n"


def test_show_of_a_damaged_journal_names_the_entry_and_shows_the_rest(fencepost: Command, ran: Done) -> None:
    damage(fencepost, seq=5)
    shown = fencepost("show", ran.task)
    assert shown.code == 7
    assert "   5  cannot be read: journal entry 'CallEnded' cannot be read" in shown.out
    assert '1.0 look {"place":"here"}' in shown.out
    assert "stopped: COMPLETED" in shown.out
    assert "the journal entries 5 cannot be read; the rest is shown" in shown.err
    assert "Traceback" not in shown.err
    assert fencepost("list").code == 0


def test_show_of_a_damaged_journal_as_json_lists_the_damage(fencepost: Command, ran: Done) -> None:
    damage(fencepost, seq=5)
    done = fencepost("show", ran.task, "--json")
    assert done.code == 7
    document = done.document
    assert [one["seq"] for one in document["damaged"]] == [5]
    assert 5 not in [entry["seq"] for entry in document["entries"]]


def test_a_damaged_task_does_not_hide_what_others_ask(fencepost: Command) -> None:
    fencepost.run("asks")
    damage(fencepost, seq=2)
    other = fencepost.run("asks").task
    listed = fencepost("approvals", "list")
    assert listed.code == 7
    assert listed.out.splitlines()[0] == other
    assert listed.err.count("cannot be read") == 1


def damage(fencepost: Command, *, seq: int) -> None:
    """Write nonsense over the body of one entry."""
    db = apsw.Connection(str(fencepost.store))
    columns = [row[1] for row in db.execute("PRAGMA table_info(entries)")]
    assert "body" in columns, columns
    db.execute("UPDATE entries SET body = ? WHERE seq = ?", (b'{"broken', seq)).fetchall()
    assert db.changes() == 1
    db.close()


def test_cancelling_a_task_that_is_over_changes_nothing(fencepost: Command, ran: Done) -> None:
    done = fencepost("cancel", ran.task)
    assert done.code == 6
    assert done.err == f"Task {ran.task} was over before: SUCCEEDED. Nothing was changed.\n"
    assert fencepost("cancel", ran.task, "--json").document["changed"] is False


def test_cancelling_twice_is_cancelled_both_times(fencepost: Command) -> None:
    task = fencepost.run("asks").task
    first, second = fencepost("cancel", task), fencepost("cancel", task)
    assert (first.code, second.code) == (0, 0)
    assert first.out == f"Task {task} is cancelled.\n"
    assert second.out == f"Task {task} was cancelled before.\n"


def test_watch_of_a_task_that_is_over_tells_all_of_it(fencepost: Command, ran: Done) -> None:
    watched = fencepost("watch", ran.task)
    assert watched.code == 0
    assert "opened by" in watched.out
    assert "1.0 look  ok  ev-1.0" in watched.out
    assert "Stopped  COMPLETED" in watched.out
