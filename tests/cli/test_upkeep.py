"""`prune` and `doctor`: a store is kept small and checked, and what is wrong is named."""

from __future__ import annotations

import asyncio
import contextlib
import io
import random
import time
from pathlib import Path

import apsw
import pytest

from fencepost import Agent, Limits, ScriptedModel, run_task, tool
from fencepost.app import App
from fencepost.cli.program import run_program
from fencepost.core.errors import StoreFull
from fencepost.models.scripted import call, calls, say
from fencepost.service.checkup import ROOM_LEAST, said_of_room
from fencepost.stores.sqlite import SqliteStore
from fencepost.stores.sqlite.reserve import RESERVE_BYTES, give_up_reserve, keep_reserve, reserve_of
from tests.cli.conftest import Command, Done

DAY = 86_400.0
DAMAGES = 40


@tool(effect="read")
async def log() -> str:
    """A long log."""
    return "x" * 300_000


def ended(fencepost: Command, task: str, *, days_ago: float = 0.0) -> str:
    """A task that is over, with one large result."""

    async def run() -> None:
        store = SqliteStore(fencepost.store, now=lambda: time.time() - days_ago * DAY)
        model = ScriptedModel([calls(call("log")), say("seen")])
        await run_task(Agent("reader", model, Limits(3), tools=(log,)), "look", store=store, task=task)
        await store.close()

    asyncio.run(run())
    return task


def changed(fencepost: Command, statement: str) -> None:
    """Do to the file what no Fencepost does."""
    db = apsw.Connection(str(fencepost.store))
    db.execute(statement).fetchall()
    db.close()


def test_prune_drops_what_ended_over_thirty_days_ago_and_show_says_so(fencepost: Command) -> None:
    old, young = ended(fencepost, "task-old", days_ago=31), ended(fencepost, "task-young", days_ago=29)
    chain = asyncio.run(head(fencepost, old))
    would = fencepost("prune", "--dry-run").out
    assert would.startswith(f"{old}  COMPLETED  reader  ")
    assert "1 task would go, " in would
    assert "1 task went, " in fencepost("prune").out
    listed = fencepost("list", "--json").document["tasks"]
    assert [task["id"] for task in listed] == [young]
    for name in (old, "old"):
        shown = fencepost("show", name)
        assert shown.code == 0
        assert "and was pruned" in shown.out
        assert f"Its journal had 8 entries; the head of its chain is {chain}.\n" in shown.out
    stone = fencepost("show", old, "--json").document["tombstone"]
    assert (stone["id"], stone["reason"], stone["chain"], stone["entries"]) == (old, "COMPLETED", chain, 8)
    assert fencepost("show", "task-other").code == 5


async def head(fencepost: Command, task: str) -> str:
    store = SqliteStore(fencepost.store)
    row = await store.row("local", task)
    await store.close()
    return row.chain


def test_prune_to_a_size_drops_the_longest_ended_and_compact_makes_the_file_smaller(
    fencepost: Command,
) -> None:
    for number in range(3):
        ended(fencepost, f"task-{number}", days_ago=3 - number)
    changed(fencepost, "UPDATE artifacts SET data = randomblob(3000000)")
    before = fencepost.store.stat().st_size
    done = fencepost("prune", "--keep-bytes", "0", "--compact", "--json").document
    assert [stone["id"] for stone in done["pruned"]] == ["task-0", "task-1", "task-2"]
    assert done["stored_bytes"] == 0
    assert done["freed_bytes"] > 3_000_000
    assert fencepost.store.stat().st_size < before / 10
    assert fencepost("doctor").code == 0


def test_never_keeps_what_only_an_age_would_drop(fencepost: Command) -> None:
    ended(fencepost, "task-old", days_ago=400)
    assert fencepost("prune", "--older-than", "never").out.startswith("0 tasks went")
    assert fencepost("prune", "--older-than", "401d").out.startswith("0 tasks went")
    assert "1 task went" in fencepost("prune", "--older-than", "57w").out


@pytest.mark.parametrize(
    ("option", "given", "said"),
    [
        ("--older-than", "5", "'5' is no age; write 90s"),
        ("--older-than", "-1d", "'-1d' is no age"),
        ("--keep-bytes", "2GB", "'2GB' is no size; write bytes, or 500M or 2G"),
    ],
)
def test_what_is_no_age_or_size_is_refused(fencepost: Command, option: str, given: str, said: str) -> None:
    ended(fencepost, "task-old", days_ago=400)
    done = fencepost("prune", option, given)
    assert done.code == 2
    assert said in done.err
    assert len(fencepost("list", "--json").document["tasks"]) == 1


def test_pruning_a_full_disk_uses_the_room_that_an_earlier_pruning_kept(
    fencepost: Command,
) -> None:
    class FullDisk(App):
        def open_store(self, given: str | None, /, *, create: bool) -> SqliteStore | None:
            if reserve_of(fencepost.store).exists() or not fencepost.store.exists():
                raise StoreFull("there is no room left")
            return super().open_store(given, create=create)

    def full(*arguments: str) -> Done:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_program(arguments, FullDisk(fencepost.environment), out, err)
        return Done(code, out.getvalue(), err.getvalue())

    ended(fencepost, "task-old", days_ago=31)
    assert fencepost("prune", "--dry-run").code == 0
    assert not reserve_of(fencepost.store).exists()
    assert fencepost("prune", "--older-than", "never").code == 0
    assert reserve_of(fencepost.store).stat().st_size == RESERVE_BYTES
    done = full("prune")
    assert (done.code, done.err) == (0, "The disk is full: the room that is kept for this was used.\n")
    assert "1 task went" in done.out
    for file in fencepost.folder.glob("store.db*"):
        file.unlink()
    assert full("prune").code == 7


def test_a_reserve_is_made_once_for_its_owner_alone_and_given_up_once(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    assert not give_up_reserve(store)
    assert not keep_reserve(store, room_least=2**62)
    assert list(tmp_path.iterdir()) == []
    assert keep_reserve(store)
    assert keep_reserve(store, room_least=2**62)
    assert reserve_of(store).stat().st_mode & 0o777 == 0o600
    assert reserve_of(store).stat().st_blocks * 512 >= RESERVE_BYTES, "a file with holes keeps no room"
    assert give_up_reserve(store)
    assert not give_up_reserve(store)
    assert not keep_reserve(tmp_path / "missing" / "store.db")


def test_doctor_finds_nothing_wrong_with_a_sound_store(fencepost: Command) -> None:
    ended(fencepost, "task-1")
    fencepost.run("asks")
    done = fencepost("doctor")
    assert done.code == 0, done.out
    checks = [line.split(":")[0].split() for line in done.out.splitlines()]
    assert checks == [["ok", name] for name in ("file", "journals", "totals", "artifacts", "clock", "room")]
    assert "1 whole results are kept" in done.out
    document = fencepost("doctor", "--json").document
    assert document["ok"] is True
    assert [check["check"] for check in document["checks"]] == [name for _, name in checks]
    assert not any(check["problems"] for check in document["checks"])


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE entries SET body = x'7b7d' WHERE seq = 3", "journals: task task-1: entry 3: "),
        ("DELETE FROM entries WHERE seq = 2", "journals: task task-1: entry 2 is missing: the next one is 3"),
        ("UPDATE entries SET v = 9 WHERE seq = 3", "version 9 is not known to this Fencepost"),
        ("UPDATE tasks SET tokens = tokens + 1", "totals: task task-1: the row counts tokens 3"),
        ("UPDATE tasks SET state = 'EATEN'", "tasks: the row of task task-1 cannot be read"),
        ("DELETE FROM artifacts", "artifacts: task task-1, entry 5: the artifact "),
        ("UPDATE artifacts SET data = zeroblob(9)", "was changed; a backup holds it"),
        ("UPDATE tasks SET updated_at = updated_at + 7200", "clock: the clock is 7"),
    ],
)
def test_doctor_names_what_is_wrong_and_goes_on(fencepost: Command, statement: str, said: str) -> None:
    ended(fencepost, "task-1")
    changed(fencepost, statement)
    done = fencepost("doctor")
    assert done.code == 7
    (wrong,) = [line for line in done.out.splitlines() if line.startswith("wrong")]
    assert said in wrong
    assert done.out.splitlines()[-1].startswith("ok     room")
    assert fencepost("doctor", "--json").document["ok"] is False


def test_doctor_names_five_of_what_is_wrong_and_counts_the_others(fencepost: Command) -> None:
    for number in range(7):
        ended(fencepost, f"task-{number}")
    changed(fencepost, "UPDATE tasks SET chain = 'x'")
    wrong = [line for line in fencepost("doctor").out.splitlines() if line.startswith("wrong")]
    assert len(wrong) == 6
    assert "task task-0: the chain" in wrong[0]
    assert wrong[-1] == "wrong  journals: and 2 more like these"


def test_doctor_and_prune_say_that_there_is_no_store_yet(fencepost: Command) -> None:
    for command in ("doctor", "prune"):
        done = fencepost(command)
        assert done.code == 5
        assert "there is no store at" in done.err


def test_a_disk_without_room_is_said() -> None:
    assert said_of_room(ROOM_LEAST).ok
    (problem,) = said_of_room(ROOM_LEAST - 1).problems
    assert problem == "the disk has 63 MiB left; free some before commits fail"


def test_doctor_names_every_task_whose_shared_result_is_gone(fencepost: Command) -> None:
    for task in ("task-1", "task-2"):
        ended(fencepost, task)
    changed(fencepost, "DELETE FROM artifacts")
    wrong = [line for line in fencepost("doctor").out.splitlines() if line.startswith("wrong")]
    assert [line.partition(", ")[0] for line in wrong] == [
        "wrong  artifacts: task task-1",
        "wrong  artifacts: task task-2",
    ]


@pytest.mark.parametrize("kind", ["flipped anywhere", "flipped in an entry", "cut"])
def test_a_file_with_a_flipped_bit_or_cut_short_is_looked_at_and_never_touched(
    fencepost: Command, kind: str
) -> None:
    ended(fencepost, "task-1")
    fencepost.run("asks")
    sound, chance = fencepost.store.read_bytes(), random.Random(kind)
    entries = [at for begin, end in bodies(fencepost, sound) for at in range(begin, end)]
    for _ in range(DAMAGES):
        at = chance.choice(entries) if kind == "flipped in an entry" else chance.randrange(1, len(sound))
        damaged = bytearray(sound)
        damaged[at] ^= 1 << chance.randrange(8)
        for file in fencepost.folder.glob("store.db*"):
            file.unlink()
        fencepost.store.write_bytes(sound[:at] if kind == "cut" else damaged)
        left = fencepost.store.read_bytes()
        done = fencepost("doctor")
        assert done.code == 7 or (kind == "flipped anywhere" and done.code == 0), (at, done.out, done.err)
        assert fencepost.store.read_bytes() == left, at


def bodies(fencepost: Command, file: bytes) -> list[tuple[int, int]]:
    """Where in the file the bodies are that lie there once and in one piece: free space may hold copies."""
    db = apsw.Connection(str(fencepost.store))
    found = [body for (body,) in db.execute("SELECT body FROM entries") if file.count(body) == 1]
    db.close()
    assert len(found) > 3
    return [(file.find(body), file.find(body) + len(body)) for body in found]
