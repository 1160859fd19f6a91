"""Chaos finds nothing in agents that do everything right, and tries what it promises to try."""

from __future__ import annotations

from pathlib import Path

from examples import storekeeper
from fencepost.testing.chaos import chaos
from tests.chaos import good

TRIED = (
    "the process died just before commit 1",
    "the process died just after commit 8",
    "the task was cancelled just after commit 3",
    "the process died when call 1.0 of label was about to do its work",
    "the process died during call 2.0 of pay, at its await number 1",
    "the task was cancelled during call 2.0 of pay, at its await number 2",
    "the time of call 2.0 of pay was over, at its await number 1",
    "the reply of step 1 was spoilt: the reply ended by its length",
    "the reply of step 1 was spoilt: each call came twice",
    "the reply of step 2 was spoilt: arguments that are no JSON",
    "the reply of step 2 was spoilt: no reply, ever",
    "the reply of step 2 was spoilt: the reply before it came again",
)


def test_nothing_is_found_in_writes_that_keep_their_keys_and_tell_what_became_of_them() -> None:
    tried: list[str] = []
    report = chaos(lambda: good.agent_of(good.label, good.pay), tell=tried.append)
    assert report.findings == ()
    assert report.notes == ()
    assert (report.agent, report.commits, report.calls, report.trials) == ("planted", 8, 2, len(tried))
    assert [words for words in TRIED if words not in tried] == []


def test_nothing_is_found_in_reads_threads_and_children() -> None:
    tools = (good.count, good.note_in_a_thread, good.ask_another)
    report = chaos(lambda: good.agent_of(*tools))
    assert report.findings == ()
    assert report.notes == ()


def test_nothing_is_found_in_a_tool_with_a_process_of_its_own() -> None:
    report = chaos(lambda: good.agent_of(good.label_from_a_process))
    assert report.findings == ()
    assert report.notes == ()


def test_each_rehearsal_has_a_folder_of_its_own_and_leaves_nothing_here() -> None:
    before = sorted(Path.cwd().iterdir())
    report = chaos(lambda: good.agent_of(good.note))
    assert report.findings == ()
    assert report.trials > 10
    assert sorted(Path.cwd().iterdir()) == before


def test_nothing_is_found_in_the_examples_and_their_own_models_are_asked() -> None:
    report = chaos(lambda: storekeeper.agent, prompt="anvil")
    assert report.findings == ()
    assert report.notes == ()
    assert (report.agent, report.calls) == ("storekeeper", 2)
