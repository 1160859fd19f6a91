"""The embedded store: one file, any number of local processes, every acknowledged commit survives kill -9."""

from fencepost.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
