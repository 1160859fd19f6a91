"""Real processes on one file: killed at every hook, fenced from outside, side by side, out of room."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.core.lifecycle import TaskState
from fencepost.stores.hooks import HOOKS
from fencepost.stores.sqlite import SqliteStore
from fencepost.testing.facts import TENANT, asked, cancelled, claimed_again, held

ROOT = Path(__file__).parents[2]
HANG_SECONDS = 60
# Each hook once; the append hooks also where the run is alone and commits at once, without the thread.
KILLS = [*(f"{hook}:1" for hook in HOOKS), *(f"append.{point}:7" for point in ("before", "inside", "after"))]


def victim(path: Path, what: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.stores.victim", str(path), what],
        env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("kill", KILLS)
async def test_no_acknowledged_commit_is_lost_when_killed_at(kill: str, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    process = victim(path, kill)
    said, _ = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == -signal.SIGKILL, f"{kill} was never reached: {said}"
    lines = said.splitlines()
    store = SqliteStore(path)
    assert await store.check() == ()
    rows = await store.tasks(TENANT)
    assert bool(rows) >= ("opened" in lines)
    if rows:
        row = rows[0]
        assert await store.verify(TENANT, "t-1") is None
        acknowledged = max([1, *(int(line.split()[1]) for line in lines if line.startswith("appended"))])
        assert acknowledged <= row.seq <= acknowledged + 2
        assert [entry.seq for entry in await store.entries(TENANT, "t-1")] == list(range(1, row.seq + 1))
        assert row.epoch >= ("claimed" in lines)
        assert row.late >= ("late" in lines)
        assert (row.seconds == 5.0) >= ("beat" in lines)
        assert len(await store.audited(TENANT)) >= ("audited" in lines)
        assert (row.state is TaskState.READY_TO_RESUME) >= ("released" in lines)
        for step in range((min(row.seq, 17) - 1) // 2):
            assert len(await store.artifact(TENANT, f"d-{step}")) == 5000
        await the_interrupted_write_is_whole_or_absent(store, kill, acknowledged=acknowledged)
        again = await claimed_again(store, take_over=True) if row.waiting_for == "" else None
        if again is not None:
            await again.append(asked())
    await store.close()


async def the_interrupted_write_is_whole_or_absent(
    store: SqliteStore, kill: str, *, acknowledged: int
) -> None:
    """What was killed before COMMIT is not there; what was killed after it is."""
    point = kill.partition(":")[0]
    row = await store.row(TENANT, "t-1")
    if point.startswith("append."):
        expected = acknowledged + 2 if point == "append.after" else acknowledged
        assert row.seq == expected
    if point.startswith("record_late."):
        assert row.late == (point == "record_late.after")
    if point.startswith("prune."):
        pruned = point == "prune.after"
        assert len(await store.tasks("other")) == (not pruned)
        if pruned:
            assert (await store.tombstone("other", "old")).seq == 2
    if point.startswith("audit."):
        assert len(await store.audited(TENANT)) == (point == "audit.after")
    if point.startswith("beat."):
        assert row.seconds == (5.0 if point == "beat.after" else 0.0)
    if point.startswith("claim."):
        assert row.epoch == (point == "claim.after")
    if point.startswith("intervene."):
        assert (row.state is TaskState.READY_TO_RESUME) == (point == "intervene.after")
    if point.startswith("release."):
        assert (row.state is TaskState.READY_TO_RESUME) == (point == "release.after")


async def test_a_run_in_another_process_is_fenced_by_a_cancel_from_here(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    process = victim(path, "run:t-1:1000000")
    assert process.stdout is not None
    for _ in range(20):
        assert process.stdout.readline().startswith("appended")
    store = SqliteStore(path)
    row, written = await store.intervene(TENANT, "t-1", "ada", lambda *_: cancelled())
    assert written
    said = process.communicate(timeout=HANG_SECONDS)[0].splitlines()
    assert said[-1] == f"fenced {row.seq - 1}"
    assert (await store.row(TENANT, "t-1")).seq == row.seq
    assert await store.verify(TENANT, "t-1") is None
    await store.close()


async def test_processes_side_by_side_all_come_to_their_end(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    processes = [victim(path, f"run:t-{number}:150") for number in range(3)]
    store = SqliteStore(path)
    holder = await held(store, "here")
    for step in range(150):
        await holder.append(asked(step))
    for number, process in enumerate(processes):
        said = process.communicate(timeout=HANG_SECONDS)[0].splitlines()
        assert (process.returncode, said[-1]) == (0, "appended 301")
        assert (await store.row(TENANT, f"t-{number}")).seq == 301
        assert await store.verify(TENANT, f"t-{number}") is None
    await store.close()


async def test_a_file_size_limit_is_a_full_disk_and_loses_no_earlier_commit(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    process = victim(path, "run:t-1:1000000:400000")
    said = process.communicate(timeout=HANG_SECONDS)[0].splitlines()
    assert process.returncode == 0
    what, seq = said[-1].split()
    assert what == "full"
    store = SqliteStore(path)
    assert (await store.row(TENANT, "t-1")).seq == int(seq) == int(said[-2].split()[1])
    assert await store.verify(TENANT, "t-1") is None
    holder = await claimed_again(store, take_over=True)
    await holder.append(asked())
    await store.close()
