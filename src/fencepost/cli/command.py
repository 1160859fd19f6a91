"""What every command shares: its two options, its pages, and the store it works on.

Rule 1: a command is an async function that gets a `Desk` and returns an exit code or nothing.
Rule 2: the store is closed on every path, so that what was acknowledged is on the disk.
"""

from __future__ import annotations

import asyncio
import functools
import shlex
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import click

from fencepost.cli.page import page_for
from fencepost.cli.text import document, json_line

if TYPE_CHECKING:
    from pathlib import Path

    from fencepost.cli.application import Application
    from fencepost.service.surface import Store

P = ParamSpec("P")
# What is still at work when a command ends, a store that closes above all, has so long. Seconds.
CLOSING_SECONDS = 5.0
Work = Callable[Concatenate["Desk", P], Coroutine[Any, Any, "int | None"]]


class Desk:
    """One command at work. `out` is for the result, `err` for everything else; `json` means one document."""

    def __init__(self, app: Application, *, json: bool, store: str | None) -> None:
        self.app, self.json, self._given = app, json, store
        self.out = page_for(sys.stdout, app.environment)
        self.err = page_for(sys.stderr, app.environment)
        self._store: Store | None = None

    def store(self, *, create: bool = False) -> Store:
        """The store, opened once. Raises TaskNotFound where there is none yet and none is made."""
        store = self.store_if_any() if not create else self._opened(create=True)
        if store is None:
            from fencepost.core.errors import TaskNotFound

            raise TaskNotFound(self.no_store())
        return store

    def no_store(self) -> str:
        """The sentence for a store that is not there; it names the place, which may be mistyped."""
        return (
            f"there is no store at {self.app.store_path(self._given)} yet, so there are no tasks;"
            " `fencepost run` or `fencepost demo` makes one, --store names another"
        )

    def store_if_any(self) -> Store | None:
        """The store, None where there is none yet."""
        return self._opened(create=False)

    def _opened(self, *, create: bool) -> Store | None:
        if self._store is None:
            self._store = self.app.open_store(self._given, create=create)
        return self._store

    def store_path(self) -> Path:
        """Where the store is, or would be."""
        return self.app.store_path(self._given)

    def keep_reserve(self) -> bool:
        """Whether room is kept beside the store for a pruning on a full disk."""
        return self.app.keep_reserve(self._given)

    def give_up_reserve(self) -> bool:
        """Whether there was such room; it is free now."""
        return self.app.give_up_reserve(self._given)

    async def close(self) -> None:
        """Settle and release the store."""
        if self._store is not None:
            await self._store.close()

    def show(self, value: Any) -> None:
        """Print the command's document."""
        self.out.raw(document(value))

    def show_line(self, value: Any) -> None:
        """Print one document of several, on one line."""
        self.out.raw(json_line(value))

    def hint(self, *words: str) -> str:
        """A command to copy: with the store, when this one was told which."""
        store = () if self._given is None else ("--store", self._given)
        return shlex.join(("fencepost", *words, *store))


def run_loop(work: Coroutine[Any, Any, int | None]) -> int | None:
    """What the work returns; unlike `asyncio.run`, without waiting for threads, one of which may hang."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(loop.create_task(work))
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=CLOSING_SECONDS))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def command(work: Work[P]) -> Callable[P, None]:
    """The work as a click callback with `--json` and `--store`; leaves with the code the work returns."""

    @click.option("--json", "json", is_flag=True, help="Print one JSON document on stdout (docs/cli.md).")
    @click.option("--store", metavar="FILE", help="The store; otherwise FENCEPOST_STORE, or your own.")
    @click.pass_context
    @functools.wraps(work)
    def callback(ctx: click.Context, /, *args: P.args, **kwargs: P.kwargs) -> None:
        json, store = kwargs.pop("json"), kwargs.pop("store")
        desk = Desk(ctx.obj, json=bool(json), store=None if store is None else str(store))

        async def at_the_desk() -> int | None:
            try:
                return await work(desk, *args, **kwargs)
            finally:
                await desk.close()

        code = run_loop(at_the_desk())
        ctx.exit(0 if code is None else int(code))

    return callback
