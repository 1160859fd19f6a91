"""The file: its settings, its schema, everything that is refused, and what a damaged one still gives."""

# ruff: noqa: ASYNC240 - a test may wait for its own small files

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from fencepost.core.entries import encode_body
from fencepost.core.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreFailed,
    StoreForeign,
    StoreFull,
    StoreNewer,
    StoreReadOnly,
)
from fencepost.core.lifecycle import StopReason
from fencepost.ports import Beat, LateRecord
from fencepost.stores.sqlite import SqliteStore
from fencepost.stores.sqlite import statements as sql
from fencepost.stores.sqlite.connection import PRAGMAS, check_place, make_private
from fencepost.stores.sqlite.failures import store_failed
from fencepost.stores.sqlite.migrations import APPLICATION_ID, bundled, identify, migrate
from fencepost.stores.sqlite.mounts import network_filesystem
from fencepost.testing.facts import TENANT, asked, cancelled, claimed_again, ended, held, new_task, opened

Change = Callable[[apsw.Connection], object]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


async def written(path: Path, steps: int = 3) -> None:
    """A closed store with one task of some entries."""
    store = SqliteStore(path)
    holder = await held(store)
    for step in range(steps):
        await holder.append(asked(step), ended(step, "x" * 300))
    await store.record_late(LateRecord(TENANT, "t-1", 1, 0, 1, 1, "ok", "late"))
    await holder.stop()
    await store.close()


def changed(path: Path, *statements: str) -> None:
    """The file after somebody changed it behind our back."""
    db = apsw.Connection(str(path))
    for statement in statements:
        db.execute(statement).fetchall()
    db.close()


# --- settings and schema -----------------------------------------------------------------------------------


async def test_every_pragma_is_set_on_every_connection(path: Path) -> None:
    store = SqliteStore(path)
    await held(store)
    store.beat([Beat(TENANT, "t-1", 1, 0.0)], lease_seconds=9)
    await store.row(TENANT, "t-1")
    for db in (store._writer._db, store._reader, store._pulse):
        assert db is not None
        read = {name: db.execute(f"PRAGMA {name}").fetchall()[0][0] for name in (*PRAGMAS, "journal_mode")}
        expected = {**PRAGMAS, "journal_mode": "wal"}
        if db is store._pulse:
            expected["synchronous"] = 1  # NORMAL: a heartbeat does not wait for the disk
        assert read == expected
        assert db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, -1) == 1
    await store.close()


async def test_the_file_says_whose_it_is_and_every_table_is_strict_and_has_rowids(path: Path) -> None:
    await SqliteStore(path).close()
    header = path.read_bytes()[:100]
    assert header[68:72] == APPLICATION_ID.to_bytes(4, "big") == b"FPOS"
    db = apsw.Connection(str(path))
    tables = db.execute("SELECT name, wr, strict FROM pragma_table_list WHERE schema = 'main'").fetchall()
    ours = {name: (wr, strict) for name, wr, strict in tables if not str(name).startswith("sqlite_")}
    assert len(ours) == 10
    assert set(ours.values()) == {(0, 1)}
    assert db.execute("PRAGMA user_version").fetchall() == [(len(bundled()),)]
    db.close()


async def test_an_entry_cannot_exist_without_its_task(path: Path) -> None:
    store = SqliteStore(path)
    with pytest.raises(StoreFailed, match="FOREIGN KEY"):
        await store._writer.write(
            "append", lambda db: db.execute(sql.ENTRY, (9, 1, 0, 0.0, "", 0, "", 0.0, "k", 1, b"")).fetchall()
        )
    await store.close()


async def test_bodies_are_stored_as_the_exact_bytes_the_chain_covers(path: Path) -> None:
    await written(path)
    db = apsw.Connection(str(path))
    stored = db.execute("SELECT kind, v, body FROM entries WHERE seq = 3").fetchall()
    assert stored == [("CallEnded", 1, encode_body(ended(0, "x" * 300)))]
    db.close()


@pytest.mark.parametrize(
    ("statement", "step"),
    [
        (sql.QUEUED, "SEARCH tasks USING INDEX tasks_queued (definition=?)"),
        (sql.NEXT_DEFINITION, "SEARCH tasks USING INDEX tasks_queued (definition>?)"),
        (sql.LEFT_RUNNING, "SCAN tasks USING INDEX tasks_running"),
        (sql.NAMED, "SEARCH tasks USING INDEX sqlite_autoindex_tasks_1 (tenant=? AND id=?)"),
        (sql.OVER, "SCAN t USING INDEX tasks_over"),
    ],
)
async def test_claims_and_prunings_look_only_through_tasks_they_may_take(
    path: Path, statement: str, step: str
) -> None:
    store = SqliteStore(path)
    names = ("tenant", "task", "definition", "definitions", "take_over", "now")
    facts = ("",) if "?" in statement else dict.fromkeys(names)
    plan = store._writer._db.execute(f"EXPLAIN QUERY PLAN {statement}", facts).fetchall()
    steps = [str(row[3]) for row in plan]
    assert step in steps
    assert not [step for step in steps if "TEMP B-TREE" in step]
    await store.close()


async def test_a_claim_takes_the_oldest_of_several_definitions_and_states(path: Path) -> None:
    moment = [0.0]
    store = SqliteStore(path, now=lambda: moment[0])
    for number, definition in enumerate(("b", "a", "c", "a", "b")):
        moment[0] = float(number)
        await store.open_task(new_task(f"t-{number}", body=opened(definition=definition)))
    taken = await store.claim("w", lease_seconds=1.0, definitions={"a"})
    assert taken is not None
    moment[0] = 10.0  # its lease is over, and it is older than what is queued but t-0
    order = []
    while (claimed := await store.claim("w", lease_seconds=100.0)) is not None:
        order.append(claimed.row.id)
    assert order == ["t-0", "t-1", "t-2", "t-3", "t-4"]
    await store.close()


async def test_an_empty_file_becomes_a_store_and_a_store_opens_again(path: Path) -> None:
    path.touch()
    await written(path)
    store = SqliteStore(path)
    assert (await store.row(TENANT, "t-1")).reason is StopReason.COMPLETED
    await store.close()


async def test_only_its_owner_may_read_a_new_store_and_an_old_one_stays_as_it_was(path: Path) -> None:
    store = SqliteStore(path)
    await held(store)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}
    await store.close()
    path.chmod(0o640)
    await SqliteStore(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_file_that_cannot_be_made_is_refused_in_a_sentence(path: Path) -> None:
    name = "x" * 300
    with pytest.raises(StoreFailed, match=r"cannot be made \(File name too long\)"):
        make_private(path.with_name(name))


async def test_several_may_create_the_file_at_once(path: Path) -> None:
    stores: list[SqliteStore] = []
    ready = threading.Barrier(4)

    def open_it() -> None:
        ready.wait(20)
        stores.append(SqliteStore(path))

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(stores) == 4
    for number, store in enumerate(stores):
        await store.open_task(new_task(f"t-{number}"))
    assert [len(await store.tasks(TENANT)) for store in stores] == [4] * 4
    for store in stores:
        await store.close()


def test_a_file_that_another_creates_while_we_look_at_it_is_not_foreign(path: Path) -> None:
    db, other = apsw.Connection(str(path)), apsw.Connection(str(path))

    def create(_cursor: apsw.Cursor, statement: str, _values: object) -> bool:
        if statement == "PRAGMA user_version":
            with suppress(apsw.BusyError):
                migrate(other, str(path), migrations=bundled(), now=0.0)
        return True

    db.set_exec_trace(create)
    assert identify(db, str(path), latest=1) in {0, 1}
    db.close()
    other.close()


async def test_a_closed_store_says_that_it_is_closed(path: Path) -> None:
    store = SqliteStore(path)
    await store.close()
    with pytest.raises(StoreFailed, match="closed"):
        await store.open_task(new_task())
    with pytest.raises(StoreFailed, match="closed"):
        await store.row(TENANT, "t-1")
    with pytest.raises(StoreFailed, match="closed"):
        store.beat([Beat(TENANT, "t-1", 1, 0.0)], lease_seconds=9)


# --- migrations --------------------------------------------------------------------------------------------


async def test_an_edited_migration_is_refused(path: Path) -> None:
    await written(path)
    db = apsw.Connection(str(path))
    edited = [replace(bundled()[0], sql=bundled()[0].sql + "-- a late thought"), *bundled()[1:]]
    with pytest.raises(StoreForeign, match="migration 0001"):
        migrate(db, str(path), migrations=edited, now=0.0)
    db.close()
    changed(path, "DELETE FROM schema_migrations")
    with pytest.raises(StoreForeign, match="migrations"):
        SqliteStore(path)


async def test_a_new_migration_is_applied_to_an_old_file_once(path: Path) -> None:
    await written(path)
    db = apsw.Connection(str(path))
    more = "CREATE TABLE more (a TEXT) STRICT"
    new = replace(bundled()[0], number=len(bundled()) + 1, name="more", sql=more)
    for _ in range(2):
        migrate(db, str(path), migrations=[*bundled(), new], now=7.0)
    applied = db.execute("SELECT number, applied_at FROM schema_migrations WHERE name = 'more'").fetchall()
    assert applied == [(new.number, 7.0)]
    assert db.execute("SELECT count(*) FROM more").fetchall() == [(0,)]
    db.close()
    with pytest.raises(StoreNewer, match="upgrade"):
        SqliteStore(path)


def test_a_migration_that_fails_leaves_nothing(path: Path) -> None:
    db = apsw.Connection(str(path))
    broken = replace(bundled()[0], number=2, name="broken", sql="CREATE TABLE half (a TEXT) STRICT; nonsense")
    with pytest.raises(apsw.SQLError):
        migrate(db, str(path), migrations=[bundled()[0], broken], now=0.0)
    assert db.execute("SELECT count(*) FROM sqlite_schema").fetchall() == [(0,)]
    assert db.execute("PRAGMA application_id").fetchall() == [(0,)]
    db.close()


# --- refusals ----------------------------------------------------------------------------------------------


def foreign_database(path: Path) -> None:
    changed(path, "PRAGMA application_id = 7", "CREATE TABLE theirs (a)")


def unnamed_database(path: Path) -> None:
    changed(path, "CREATE TABLE theirs (a)")


def logged_database(path: Path) -> None:
    changed(path, "PRAGMA journal_mode = WAL", "CREATE TABLE theirs (a)")


def text_file(path: Path) -> None:
    path.write_text("this is somebody's diary, not a database\n" * 100)


@pytest.mark.parametrize("make", [foreign_database, unnamed_database, logged_database, text_file])
def test_a_file_of_another_application_is_refused_and_left_as_it_was(
    path: Path, make: Callable[[Path], None]
) -> None:
    make(path)
    before = path.read_bytes()
    with pytest.raises(StoreForeign, match=r"store\.db .*give another path"):
        SqliteStore(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir() if file.stat().st_size] == ["store.db"]


def test_a_folder_is_not_a_store_and_a_store_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreForeign, match="is a folder"):
        SqliteStore(tmp_path)
    with pytest.raises(StoreFailed, match="does not exist; create it"):
        SqliteStore(tmp_path / "missing" / "store.db")
    assert list(tmp_path.iterdir()) == []


async def test_a_newer_schema_is_refused_before_anything_is_written(path: Path) -> None:
    await written(path)
    changed(path, f"PRAGMA user_version = {len(bundled()) + 1}")
    before = path.read_bytes()
    with pytest.raises(StoreNewer, match="schema 2, this Fencepost knows up to 1; upgrade"):
        SqliteStore(path)
    assert path.read_bytes() == before


async def test_a_truncated_file_is_called_damaged(path: Path) -> None:
    await written(path, steps=60)
    os.truncate(path, 4096 * 3)

    async def read() -> None:
        store = SqliteStore(path)
        try:
            await store.entries(TENANT, "t-1")
        finally:
            await store.close()

    with pytest.raises(StoreCorrupt, match="restore a backup"):
        await read()


async def test_a_damaged_page_is_named_and_other_pages_stay_readable(path: Path) -> None:
    await written(path, steps=60)
    db = apsw.Connection(str(path))
    root = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'entries'").fetchall()[0][0]
    db.close()
    assert isinstance(root, int)
    with path.open("r+b") as file:
        file.seek(4096 * (root - 1))
        file.write(b"\xa5" * 4096)
    store = SqliteStore(path)
    assert (await store.row(TENANT, "t-1")).seq == 122
    with pytest.raises(StoreCorrupt, match="damaged"):
        await store.entries(TENANT, "t-1")
    problems = await store.check()
    assert problems
    assert all(isinstance(problem, str) for problem in problems)
    await store.close()


async def test_a_sound_file_has_no_problems(path: Path) -> None:
    await written(path)
    store = SqliteStore(path)
    assert await store.check() == ()
    await store.close()


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Inside it this process acts as somebody who is not root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def reachable(path: Path) -> Path:
    """The path, in folders that anybody may enter."""
    for folder in path.parents:
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o755)
    return path


async def test_a_file_that_cannot_be_written_is_refused(reachable: Path) -> None:
    await written(reachable)
    reachable.parent.chmod(0o777)
    reachable.chmod(0o444)
    with ordinary_user(), pytest.raises(StoreReadOnly, match=r"store\.db cannot be written; make it"):
        SqliteStore(reachable)
    reachable.chmod(0o666)
    with ordinary_user():
        store = SqliteStore(reachable)
        await store.open_task(new_task("t-2"))
        await store.close()


async def test_a_folder_that_cannot_be_written_is_refused(reachable: Path) -> None:
    await written(reachable)
    reachable.chmod(0o666)
    reachable.parent.chmod(0o555)
    try:
        with ordinary_user(), pytest.raises(StoreReadOnly, match=r"the folder .* cannot be written"):
            SqliteStore(reachable)
    finally:
        reachable.parent.chmod(0o755)


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /home rw - nfs4 server:/home rw
31 30 254:1 / /home/local\\040disk rw - xfs /dev/vdb rw
32 22 0:41 / /mnt/windows rw shared:1 - cifs //server/share rw
33 22 0:42 / /mnt/host rw - 9p host rw
34 22 0:43 / /mnt/ssh rw - fuse.sshfs me@server: rw
35 22 0:44 / /mnt/layers rw - fuse.fuse-overlayfs overlay rw
36 22 0:45 / /mnt/again rw - ext4 /dev/vdc rw
37 22 0:46 / /mnt/again rw - smb3 //server/again rw
not a mount
"""


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("/var/store.db", None),
        ("/home/ada/store.db", "nfs4"),
        ("/homework/store.db", None),
        ("/home/local disk/store.db", None),
        ("/mnt/windows/store.db", "cifs"),
        ("/mnt/host/a/b/store.db", "9p"),
        ("/mnt/ssh/store.db", "fuse.sshfs"),
        ("/mnt/layers/store.db", None),
        ("/mnt/again/store.db", "smb3"),
    ],
)
def test_the_filesystem_is_that_of_the_longest_and_latest_mount(place: str, found: str | None) -> None:
    assert network_filesystem(Path(place), MOUNTS) == found


def test_a_network_filesystem_is_refused_in_a_sentence(path: Path) -> None:
    mounts = f"30 22 0:40 / {path.parent.resolve()} rw - nfs server:/home rw\n"
    with pytest.raises(StoreFailed, match=r"network filesystem \(nfs\).*use a local disk"):
        check_place(path, mounts=mounts)
    check_place(path, mounts="")


async def test_a_file_that_another_keeps_locked_is_busy_and_later_is_not(path: Path) -> None:
    store = SqliteStore(path, busy_seconds=0.02)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE").fetchall()
    with pytest.raises(StoreBusy, match=r"locked by another process.*try again"):
        await store.open_task(new_task())
    with pytest.raises(StoreBusy):
        store.beat([Beat(TENANT, "t-1", 1, 0.0)], lease_seconds=9)
    other.execute("ROLLBACK").fetchall()
    await store.open_task(new_task())
    other.close()
    await store.close()


@pytest.mark.parametrize(
    ("why", "system_errno", "kind"),
    [
        (apsw.BusyError("database is locked"), 0, StoreBusy),
        (apsw.LockedError("table is locked"), 0, StoreBusy),
        (apsw.FullError("database or disk is full"), 0, StoreFull),
        (apsw.IOError("disk I/O error"), errno.ENOSPC, StoreFull),
        (apsw.IOError("disk I/O error"), errno.EDQUOT, StoreFull),
        (apsw.IOError("disk I/O error"), errno.EIO, StoreFailed),
        (apsw.ReadOnlyError("attempt to write"), 0, StoreReadOnly),
        (apsw.PermissionsError("access denied"), 0, StoreReadOnly),
        (apsw.CorruptError("malformed"), 0, StoreCorrupt),
        (apsw.NotADBError("file is not a database"), 0, StoreForeign),
        (apsw.CantOpenError("unable to open"), 0, StoreFailed),
        (apsw.SQLError("no such table"), 0, StoreFailed),
    ],
)
def test_what_sqlite_says_becomes_one_sentence_of_ours(
    why: apsw.Error, system_errno: int, kind: type[StoreFailed]
) -> None:
    said = store_failed(why, "/a/store.db", system_errno=system_errno)
    assert type(said) is kind
    assert "/a/store.db" in str(said)
    assert "\n" not in str(said)


# --- what does not fit --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE entries SET kind = 'Dreamt' WHERE seq = 5", "'Dreamt' version 1"),
        ("UPDATE entries SET v = 2 WHERE seq = 5", "'CallEnded' version 2"),
    ],
)
async def test_an_entry_of_a_newer_fencepost_is_named_and_all_else_can_be_read(
    path: Path, statement: str, named: str
) -> None:
    store = SqliteStore(path)
    holder = await held(store)
    for step in range(3):
        await holder.append(asked(step), ended(step))
    await store.release(holder.lease, seconds=0)
    await store.open_task(new_task("younger"))
    await store.close()
    changed(path, statement)
    store = SqliteStore(path)
    with pytest.raises(StoreNewer, match=named):
        await store.entries(TENANT, "t-1")
    with pytest.raises(StoreNewer, match=named):
        await store.verify(TENANT, "t-1")
    assert len(await store.entries(TENANT, "t-1", limit=4)) == 4
    assert len(await store.entries(TENANT, "t-1", after=5)) == 2
    assert (await store.row(TENANT, "t-1")).seq == 7
    claimed = await store.claim("w", lease_seconds=9)
    assert claimed is not None
    assert claimed.lease.task == "younger"
    with pytest.raises(StoreNewer, match=named):
        await claimed_again(store)
    await store.close()


@pytest.mark.parametrize(
    ("statement", "difference"),
    [
        ("DELETE FROM entries WHERE seq = 3", "entry 3 is missing: the next one is 4"),
        ("UPDATE entries SET body = replace(body, 'xxx', 'yyy') || '' WHERE 0", None),
        ("UPDATE entries SET body = CAST(replace(CAST(body AS TEXT), 'xxx', 'xyx') AS BLOB) WHERE seq = 3",
         "the chain over 8 entries is"),
        ("UPDATE entries SET body = x'00' WHERE seq = 3", "entry 3: .*cannot be read"),
        ("UPDATE entries SET epoch = 0 WHERE seq = 4", "entry 4 has epoch 0, below 1"),
        ("UPDATE tasks SET seq = 9", "the row is at seq 9, the journal ends at 8"),
        ("UPDATE tasks SET chain = 'f00'", "the row says f00"),
        ("UPDATE tasks SET epoch = 0", "the row is at epoch 0, below 1"),
        ("UPDATE tasks SET state = 'RUNNING'", "the row is RUNNING"),
        ("UPDATE tasks SET state = 'CANCELLED'", "COMPLETED leads to SUCCEEDED"),
        ("UPDATE tasks SET reason = NULL", "the journal ends with COMPLETED"),
        ("UPDATE tasks SET late = 0", "the row counts 0 late records, there are 1"),
        ("UPDATE tasks SET agent = 'other'", "not those of entry 1"),
        ("UPDATE prompts SET prompt = 'other'", "not those of entry 1"),
    ],
)  # fmt: skip
async def test_the_first_difference_between_row_and_journal_is_named(
    path: Path, statement: str, difference: str | None
) -> None:
    await written(path)
    changed(path, statement)
    store = SqliteStore(path)
    found = await store.verify(TENANT, "t-1")
    await store.close()
    if difference is None:
        assert found is None
    else:
        with pytest.raises(AssertionError, match=difference):
            raise AssertionError(found)


async def test_a_row_in_a_state_nobody_knows_is_called_damaged(path: Path) -> None:
    await written(path)
    changed(path, "UPDATE tasks SET state = 'DREAMING'")
    store = SqliteStore(path)
    with pytest.raises(StoreCorrupt, match="DREAMING"):
        await store.row(TENANT, "t-1")
    await store.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE entries SET body = CAST(replace(CAST(body AS TEXT), '2', '3') AS BLOB) WHERE task = 1",
        "UPDATE entries SET kind = 'Stopped' WHERE task = 1 AND seq = 2",
        "DELETE FROM entries WHERE task = 1 AND seq = 2",
        "UPDATE tasks SET chain = 'x' WHERE number = 1",
        "UPDATE prompts SET prompt = CAST(x'ff' AS TEXT) WHERE task = 1",
    ],
)
async def test_nobody_runs_or_changes_a_task_whose_journal_is_not_the_one_that_was_written(
    path: Path, damage: str
) -> None:
    store = SqliteStore(path)
    holder = await held(store)
    await holder.append(asked(1), asked(2))
    await store.release(holder.lease, seconds=0)
    await store.open_task(new_task("t-2"))
    await store.close()
    changed(path, damage)
    store = SqliteStore(path)
    with pytest.raises(StoreCorrupt, match="restore a backup"):
        await store.claim("w", lease_seconds=1, tenant=TENANT, task="t-1")
    with pytest.raises(StoreCorrupt, match="restore a backup"):
        await store.intervene(TENANT, "t-1", "ada", lambda *_: cancelled())
    younger = await store.claim("w", lease_seconds=1)
    assert younger is not None
    assert younger.row.id == "t-2"
    await store.close()


async def test_a_row_that_cannot_be_read_stays_and_does_not_keep_others_from_being_pruned(path: Path) -> None:
    store = SqliteStore(path)
    for task in ("t-1", "t-2"):
        await (await held(store, task)).stop()
    changed(path, "UPDATE tasks SET reason = 'EATEN' WHERE number = 1")
    assert [stone.id for stone in await store.prune(None, older_than=0.0)] == ["t-2"]
    await store.close()


async def test_a_store_that_another_process_writes_to_is_not_made_smaller_meanwhile(path: Path) -> None:
    await written(path)
    store = SqliteStore(path, busy_seconds=0.01)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE").fetchall()
    with pytest.raises(StoreBusy):
        await store.compact()
    other.execute("ROLLBACK").fetchall()
    await store.compact()
    assert (await store.row(TENANT, "t-1")).reason is StopReason.COMPLETED
    other.close()
    await store.close()
