"""`approvals` and `outcomes`: exact arguments, bound decisions, refusals, and how it goes on."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from fencepost.stores.sqlite import SqliteStore
from tests.cli.agents_for_tests import HOSTILE
from tests.cli.conftest import AGENTS, Command


def effects(fencepost: Command) -> list[str]:
    """What was really written, outside the store."""
    return fencepost.effects.read_text().splitlines() if fencepost.effects.exists() else []


def test_a_task_that_asks_ends_with_3_and_prints_the_exact_commands(fencepost: Command) -> None:
    done = fencepost.run("asks")
    assert done.code == 3
    digest = fencepost("approvals", "list", "--json").document["approvals"][0]["digest"]
    assert f"fencepost approvals approve {done.task} 1.0 --digest {digest[:16]} --resume" in done.out
    assert f"fencepost approvals reject {done.task} 1.0 --reason" in done.out
    assert f"fencepost resume {done.task}" in done.out
    assert effects(fencepost) == []


def test_the_printed_command_names_the_store_when_this_one_was_told_which(fencepost: Command) -> None:
    other = str(fencepost.folder / "other.db")
    done = fencepost.run("asks", "--store", other)
    assert f"--resume --store {other}" in done.out
    assert not fencepost.store.exists()


def test_arguments_are_shown_whole_and_escaped_before_anybody_approves(fencepost: Command) -> None:
    fencepost.run("asks_evil")
    listed = fencepost("approvals", "list")
    row = next(line for line in listed.out.splitlines() if "arguments" in line)
    assert json.loads(row.split(maxsplit=1)[1]) == {"what": HOSTILE + "x" * 3000}
    assert row.isascii()
    assert row.isprintable()


def test_the_list_of_approvals_has_the_commands_that_answer(fencepost: Command) -> None:
    task = fencepost.run("asks").task
    listed = fencepost("approvals", "list").out
    assert f"fencepost approvals approve {task} 1.0 --digest " in listed
    assert f"fencepost approvals reject {task} 1.0 --reason" in listed


def test_a_decision_repeated_when_all_is_over_says_so_and_not_how_to_go_on(fencepost: Command) -> None:
    task = fencepost.run("asks").task
    fencepost("approvals", "approve", task, "1.0", "--resume")
    again = fencepost("approvals", "approve", task, "1.0")
    assert (again.code, again.out) == (0, f"Call 1.0 of {task} is approved.\n")
    assert again.err == "The task is over (SUCCEEDED); that was decided before.\n"


def test_approving_with_resume_runs_the_call_once_and_goes_on(fencepost: Command) -> None:
    task = fencepost.run("asks").task
    done = fencepost("approvals", "approve", task, "1.0", "--resume")
    assert done.code == 0, done.err
    assert "SUCCEEDED" in done.out
    assert effects(fencepost) == ["one"]


def test_approving_without_resume_tells_how_to_go_on(fencepost: Command) -> None:
    task = fencepost.run("asks").task
    done = fencepost("approvals", "approve", task, "1.0")
    assert (done.code, done.out) == (0, f"Call 1.0 of {task} is approved.\n")
    assert f"fencepost resume {task}" in done.err
    assert effects(fencepost) == []
    assert fencepost("resume", task).code == 0
    assert effects(fencepost) == ["one"]


def test_rejecting_tells_the_model_why_and_runs_nothing(fencepost: Command) -> None:
    task = fencepost.run("asks").task
    done = fencepost("approvals", "reject", task, "1.0", "--reason", "on a Friday?", "--resume")
    assert done.code == 0
    assert effects(fencepost) == []
    assert "on a Friday?" in fencepost("show", task).out


def test_a_digest_binds_the_decision_to_the_arguments_that_were_shown(fencepost: Command) -> None:
    task = fencepost.run("asks").task
    digest = fencepost("approvals", "list", "--json").document["approvals"][0]["digest"]
    other = fencepost("approvals", "approve", task, "1.0", "--digest", "0" * 64)
    assert other.code == 8
    assert "other arguments" in other.err
    short = fencepost("approvals", "approve", task, "1.0", "--digest", digest[:4])
    assert short.code == 8
    assert "too short" in short.err
    assert fencepost("approvals", "approve", task, "1.0", "--digest", digest[:8]).code == 0


def test_one_of_two_answers_does_not_resume_and_says_that_more_is_asked(fencepost: Command) -> None:
    task = fencepost.run("asks_twice").task
    first = fencepost("approvals", "approve", task, "1.0", "--resume")
    assert first.code == 0
    assert "It asks for more" in first.err
    assert effects(fencepost) == []
    assert fencepost("approvals", "approve", task, "1.1", "--resume").code == 0
    assert effects(fencepost) == ["one", "two"]


def test_another_decision_about_the_same_call_is_refused_and_kept(fencepost: Command) -> None:
    task = fencepost.run("asks").task
    fencepost("approvals", "reject", task, "1.0")
    again = fencepost("approvals", "approve", task, "1.0")
    assert again.code == 8
    assert f"fencepost: call 1.0 of task {task} was already rejected by local/" in again.err
    assert kept_refusals(fencepost) == [("approved", "refused")]


def kept_refusals(fencepost: Command) -> list[tuple[str, str]]:
    async def read() -> list[tuple[str, str]]:
        store = SqliteStore(fencepost.store)
        found = [(record.act, record.outcome) for record in await store.audited("local")]
        await store.close()
        return found

    return asyncio.run(read())


def test_a_rules_file_counts_for_an_agent_of_ones_own(fencepost: Command) -> None:
    rules = fencepost.folder / "rules.toml"
    rules.write_text('[[rule]]\ntool = "write"\nthen = "deny"\nreason = "not on Fridays"\n', encoding="utf-8")

    done = fencepost("run", f"{AGENTS}:asks", "x", "--rules", str(rules))

    assert "denied by the rules: not on Fridays" in done.err


def test_nobody_approves_their_own_call_unless_the_rules_say_so(fencepost: Command) -> None:
    task = fencepost.run("asks_others").task
    done = fencepost("approvals", "approve", task, "1.0")
    assert done.code == 8
    assert "may not approve its calls" in done.err
    assert fencepost("approvals", "reject", task, "1.0").code == 0


def test_a_call_that_nobody_asked_about_is_refused(fencepost: Command) -> None:
    task = fencepost.run("asks").task
    for call in ("9.9", "one", "1"):
        assert fencepost("approvals", "approve", task, call).code == 8


def test_a_lost_write_waits_for_a_person_and_is_never_repeated(fencepost: Command) -> None:
    killed = fencepost.process("run", f"{AGENTS}:loses_a_write", "write")
    assert killed.code == -signal.SIGKILL
    resumed = fencepost("resume", "task")
    assert resumed.code == 3
    assert "what became of this?" in resumed.out
    assert "its end was not heard (crash)" in resumed.out
    (question,) = fencepost("outcomes", "list", "--json").document["outcomes"]
    assert (question["call"], question["about"], question["tool"]) == ("1.0", "outcome", "write_and_die")
    assert fencepost("approvals", "list").err == "No task waits for an approval.\n"
    listed = fencepost("outcomes", "list").out
    assert f"fencepost outcomes resolve {question['task']} 1.0 VERDICT" in listed
    assert "asked for" not in listed
    resolved = fencepost(
        "outcomes", "resolve", "task", "1.0", "happened", "--result", "I looked: it is there", "--resume"
    )
    assert resolved.code == 0, resolved.err
    assert effects(fencepost) == ["one"]
    assert "I looked: it is there" in fencepost("show", "task").out


def test_a_write_that_did_not_happen_runs_again_with_the_same_key(fencepost: Command) -> None:
    fencepost.process("run", f"{AGENTS}:loses_a_write", "write")
    fencepost("resume", "task")
    fencepost.effects.unlink()
    done = fencepost("outcomes", "resolve", "task", "1.0", "did-not-happen", "--resume")
    assert done.code == 0, done.err
    assert effects(fencepost) == ["one"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("1.0", "perhaps"), 2, "'perhaps' is not one of"),
        (("1.0", "cannot-tell", "--result", "x"), 2, "only a call that happened has a result"),
        (("1.0", "happened"), 8, "asks about no outcome of call 1.0"),
    ],
)
def test_a_wrong_outcome_gets_one_sentence(
    fencepost: Command, arguments: tuple[str, ...], code: int, words: str
) -> None:
    task = fencepost.run("asks").task
    done = fencepost("outcomes", "resolve", task, *arguments)
    assert done.code == code
    assert words in done.err
    assert done.err.count("\n") == 1
