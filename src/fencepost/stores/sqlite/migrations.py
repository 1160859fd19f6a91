"""Numbered SQL files that bring a store's schema up to date, each once, each proven by its checksum.

Rule 1: a migration that was released is never edited; the next change is the next number.
Rule 2: all of them run in one transaction with `application_id` and `user_version`, so a file is a whole
store or none at all.
Rule 3: a store with a higher number than ours is refused before anything is written to it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from importlib import resources

import apsw
from msgspec import Struct

from fencepost.core.errors import StoreForeign, StoreNewer
from fencepost.stores.sqlite.statements import fetch

APPLICATION_ID = 0x46504F53  # "FPOS": how a file says that it is a Fencepost store


class Migration(Struct, frozen=True):
    """One numbered file."""

    number: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        """The checksum that is stored beside the number."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


@functools.cache
def bundled() -> tuple[Migration, ...]:
    """The migrations of this Fencepost, in order, numbered from 1 without gaps."""
    folder = resources.files("fencepost.stores").joinpath("sql", "sqlite")
    found = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        number, _, name = file.name.removesuffix(".sql").partition("_")
        found.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    assert [one.number for one in found] == list(range(1, len(found) + 1)), "migrations must have no gaps"
    return tuple(found)


def identify(db: apsw.Connection, path: str, *, latest: int) -> int:
    """The schema number of the store, 0 for an empty file; StoreForeign or StoreNewer if it is not for us."""
    application, version, objects = _identity(db)
    if application != APPLICATION_ID:
        if application or version or objects:
            raise StoreForeign(
                f"{path} is another application's database (application_id {application}); give another path"
            )
        return 0
    if version > latest:
        raise StoreNewer(
            f"{path} has schema {version}, this Fencepost knows up to {latest}; upgrade Fencepost to open it"
        )
    return version


def migrate(db: apsw.Connection, path: str, *, migrations: Sequence[Migration], now: float) -> None:
    """The store has every migration, each as it was when it was applied; StoreForeign when one was edited."""
    latest = len(migrations)
    version = identify(db, path, latest=latest)
    if version < latest:
        fetch(db, "BEGIN IMMEDIATE")
        try:
            version = identify(db, path, latest=latest)  # another process may have been first
            for migration in migrations[version:]:
                fetch(db, migration.sql)
                fetch(
                    db,
                    "INSERT INTO schema_migrations (number, name, sha256, applied_at) VALUES (?, ?, ?, ?)",
                    (migration.number, migration.name, migration.sha256, now),
                )
            fetch(db, f"PRAGMA application_id = {APPLICATION_ID}")
            fetch(db, f"PRAGMA user_version = {latest}")
            fetch(db, "COMMIT")
        finally:
            if db.in_transaction:
                fetch(db, "ROLLBACK")
    applied = fetch(db, "SELECT number, sha256 FROM schema_migrations ORDER BY number")
    expected = [(one.number, one.sha256) for one in migrations]
    for was, ours in zip(applied, expected, strict=False):
        if was != ours:
            raise StoreForeign(
                f"{path} was made with another migration {ours[0]:04} than this Fencepost has; open it with"
                " the build that made it, or give another path"
            )
    if len(applied) != len(expected):
        raise StoreForeign(f"{path} lists {len(applied)} migrations for schema {latest}; restore a backup")


def _identity(db: apsw.Connection) -> tuple[int, int, int]:
    """Application id, schema number and count of objects, of one moment: another may be creating the file."""
    begun = not db.in_transaction
    if begun:
        fetch(db, "BEGIN")
    try:
        objects = _number(db, "SELECT count(*) FROM sqlite_schema")
        return _number(db, "PRAGMA application_id"), _number(db, "PRAGMA user_version"), objects
    finally:
        if begun and db.in_transaction:
            fetch(db, "ROLLBACK")


def _number(db: apsw.Connection, sql: str) -> int:
    return int(fetch(db, sql)[0][0])
