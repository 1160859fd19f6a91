"""What must hold of every journal is judged, too: a fault of the runtime itself would be named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from fencepost import MemoryStore, run_task
from fencepost.core.entries import CallEnded, CallStarted, Entry, Stopped
from fencepost.core.lifecycle import StopReason, TaskState
from fencepost.ports import TaskRow
from fencepost.testing.chaos.facts import UNDISTURBED, Plan, Ran
from fencepost.testing.chaos.stage import Stage, children
from fencepost.testing.chaos.trial import judge
from tests.chaos import good


async def journal() -> tuple[TaskRow, list[Entry]]:
    """A good journal with one write."""
    store = MemoryStore()
    result = await run_task(good.agent_of(good.count), "count", store=store, task="chaos")
    return result.row, list(result.entries)


def stage_for(folder: Path, plan: Plan = UNDISTURBED) -> Stage:
    """A stage on which nothing was played."""
    stage = Stage(plan, folder=folder, probe=None, tell=lambda words: None)
    stage.runs.append(Ran("1.0", "count", "read", "key", 1, "", finished=True, ended=1.0))
    return stage


def rules_of(
    stage: Stage, row: TaskRow, entries: list[Entry], *, spoilt: bool = False
) -> list[tuple[str, str]]:
    """The rules that do not hold, with their tools."""
    judge(stage, good.agent_of(good.count), tuple(entries), row=row, spoilt=spoilt)
    return [(problem.rule, problem.tool) for problem in stage.problems]


async def test_nothing_is_wrong_with_a_good_journal(tmp_path: Path) -> None:
    assert rules_of(stage_for(tmp_path), *await journal()) == []


async def test_a_gap_a_second_end_and_an_open_call_are_named(tmp_path: Path) -> None:
    row, entries = await journal()
    assert rules_of(stage_for(tmp_path), row, [*entries[:1], *entries[2:]]) == [("journal", "")]
    end = replace(entries[-1], seq=len(entries) + 1, body=Stopped(StopReason.COMPLETED))
    assert rules_of(stage_for(tmp_path), row, [*entries, end]) == [("journal", "")]
    ended = next(at for at, entry in enumerate(entries) if isinstance(entry.body, CallEnded))
    without = [replace(each, seq=at) for at, each in enumerate(entries[:ended] + entries[ended + 1 :], 1)]
    stage = stage_for(tmp_path)
    assert rules_of(stage, row, without) == [("journal", "")]
    assert stage.problems[0].says == "the task is over, and the calls 1.0 have no result"


async def test_a_task_without_an_end_is_named(tmp_path: Path) -> None:
    row, entries = await journal()
    assert rules_of(stage_for(tmp_path), replace(row, state=TaskState.RUNNING), entries[:3]) == [("ends", "")]


async def test_a_cancel_that_did_not_hold_is_named(tmp_path: Path) -> None:
    row, entries = await journal()
    stage = stage_for(tmp_path)
    stage.cancelled = True
    stage.begin(Ran("2.0", "note", "write", "key", 1, ""))
    assert rules_of(stage, row, entries) == [("cancel", "note"), ("cancel", "")]


async def test_a_write_that_was_started_twice_is_named(tmp_path: Path) -> None:
    row, entries = await journal()
    started = next(at for at, entry in enumerate(entries) if isinstance(entry.body, CallStarted))
    twice = [*entries[: started + 1], entries[started], *entries[started + 1 :]]
    stage = stage_for(tmp_path)
    stage.runs[0].effect = "write"
    assert rules_of(stage, row, [replace(each, seq=at) for at, each in enumerate(twice, 1)]) == [
        ("write_twice", "count")
    ]


@pytest.mark.parametrize("fault", ["TRUNCATED", "REFUSED", "DUPLICATE_IDS", "repeated"])
async def test_a_call_of_a_spoilt_reply_that_ran_is_named(tmp_path: Path, fault: str) -> None:
    row, entries = await journal()
    for spoilt, found in ((True, [("spoilt_reply", "count")]), (False, [])):
        stage = stage_for(tmp_path, Plan("reply", step=1, fault=fault))
        assert rules_of(stage, row, entries, spoilt=spoilt) == found


def test_a_child_of_this_process_is_seen_until_it_has_ended() -> None:
    before = children()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert set(children()) - set(before) == {child.pid}
        child.communicate(b"\n")
    assert child.pid not in children()
