"""What was released, and when: git tags and commits, or a change record in JSON lines.

Rules of this file:
- git is started with fixed arguments, without shell, pager, hooks, prompts or the user's configuration.
- A record without a service may concern any service: it is listed for each, and marked by `service: null`.
- Newest first, because the question is always what changed just before.

The answer: `service`, `start`, `end`, `releases` (`release`, `service`, `at`, `kind`: `tag`, `commit` or
`change`, `id`, `text`), `found` (how many there were), and `bad_lines` for a change record.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from fencepost.agents.incident.sources.errors import Refused, Unavailable, Unusable
from fencepost.agents.incident.sources.logs import field, valid_text
from fencepost.agents.incident.sources.process import TimedOut, reason, run_program
from fencepost.agents.incident.sources.window import (
    Window,
    parse_window,
    read_moment,
    shown,
    write_moment,
)

TEXT_CHARS = 300  # of a subject or description
NAME_CHARS = 128
LINE_BYTES = 64 * 1024  # of a change record; a longer line counts as bad
# payment-v2.4.1, payment/2.4.1, payment@2.4.1: the service stands before the version.
TAG_OF_SERVICE = re.compile(r"(?P<service>[A-Za-z0-9._/-]+?)[-/@](?P<version>v?\d+(?:\.\d+)*\S*)")
GIT_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.pager=cat",
    "log.showSignature=false",  # would start the program that the repository names
    "protocol.allow=never",  # a partial clone would fetch what is missing
)
GIT_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LC_ALL": "C",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_PAGER": "cat",
}


class ReleaseLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one question may read and return."""

    window_seconds: float = 90 * 24 * 3600  # a quarter: releases are rarer than samples
    releases: int = 100
    output_bytes: int = 4 * 1024 * 1024  # about ten thousand tags
    record_bytes: int = 64 * 1024 * 1024
    seconds: float = 15.0


class Releases(Protocol):
    """A record of releases."""

    async def list_releases(
        self, service: str = "", *, start: str, end: str, limit: int = 20
    ) -> dict[str, Any]:
        """The releases of the window, newest first; an empty service means all."""
        ...


class GitConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which repository, and whether commits count as releases beside tags."""

    repository: str
    commits: bool = True
    limits: ReleaseLimits = ReleaseLimits()


class ChangeFields(msgspec.Struct, frozen=True, kw_only=True):
    """Names of fields of a change record, the first present one counts."""

    time: tuple[str, ...] = ("time", "at", "timestamp", "date", "deployed_at")
    service: tuple[str, ...] = ("service", "app", "component")
    release: tuple[str, ...] = ("release", "version", "tag", "id", "issue")
    text: tuple[str, ...] = ("text", "description", "summary", "command", "message")


class ChangeRecordConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which file; `synthetic` marks the answer of bundled data."""

    path: str
    fields: ChangeFields = ChangeFields()
    limits: ReleaseLimits = ReleaseLimits()
    synthetic: bool = False


class GitReleases:
    """Releases as a git repository tells them: tags, and commits where configured."""

    def __init__(self, config: GitConfig) -> None:
        self._config = config

    async def list_releases(
        self, service: str = "", *, start: str, end: str, limit: int = 20
    ) -> dict[str, Any]:
        """The tags (and commits) of the window, newest first. Raises `SourceError`."""
        window = _window(service, start, end, limit, self._config.limits)
        found = await self._tags()
        if self._config.commits:
            found += await self._commits(window)
        return _answer(found, service, window, limit)

    async def _tags(self) -> list[dict[str, Any]]:
        form = "%(refname:lstrip=2)%00%(creatordate:unix)%00%(objectname:short=12)%00%(contents:subject)"
        rows = await self._git("for-each-ref", "--sort=-creatordate", f"--format={form}", "refs/tags")
        return [_tag(row) for row in rows if row[1].isdigit()]

    async def _commits(self, window: Window) -> list[dict[str, Any]]:
        rows = await self._git(
            "log",
            f"--max-count={self._config.limits.releases}",
            f"--since=@{int(window.start)}",
            f"--until=@{int(window.end)}",
            "--format=%h%x00%ct%x00%h%x00%s",
            "HEAD",
        )
        return [
            _entry(row[0], None, at=float(row[1]), kind="commit", identity=row[2], text=row[3])
            for row in rows
            if row[1].isdigit()
        ]

    async def _git(self, *arguments: str) -> list[list[str]]:
        config = self._config
        argv = ["git", "--no-pager", "-C", config.repository]
        for setting in GIT_SETTINGS:
            argv += ["-c", setting]
        try:
            ended = await run_program(
                [*argv, *arguments],
                seconds=config.limits.seconds,
                output_bytes=config.limits.output_bytes,
                environment=GIT_ENVIRONMENT,
            )
        except TimedOut:
            raise Unavailable(
                f"git did not answer within {config.limits.seconds:g} s; check the repository."
            ) from None
        if ended.exit_code != 0:
            words = " ".join(ended.stderr.decode("utf-8", "replace").split())[:TEXT_CHARS].rstrip(".")
            raise Unusable(
                f"git cannot read {shown(config.repository)} ({words}); check the path and its owner."
            )
        lines = ended.stdout.decode("utf-8", "replace").split("\n")
        rows = [line.split("\0") for line in (lines[:-1] if ended.cut else lines)]
        return [row for row in rows if len(row) == 4]


class ChangeRecord:
    """Releases as a JSON-lines file tells them."""

    def __init__(self, config: ChangeRecordConfig) -> None:
        self._config = config

    async def list_releases(
        self, service: str = "", *, start: str, end: str, limit: int = 20
    ) -> dict[str, Any]:
        """The changes of the window, newest first. Raises `SourceError`."""
        window = _window(service, start, end, limit, self._config.limits)
        found, bad = await asyncio.to_thread(self._read)
        answer = {**_answer(found, service, window, limit), "bad_lines": bad}
        return {"synthetic": True, **answer} if self._config.synthetic else answer

    def _read(self) -> tuple[list[dict[str, Any]], int]:
        path = Path(self._config.path)
        found: list[dict[str, Any]] = []
        bad = 0
        try:
            if path.stat().st_size > self._config.limits.record_bytes:
                raise Unusable(
                    f"{shown(str(path))} has over {self._config.limits.record_bytes} bytes; cut it."
                )
            with path.open("rb") as file:
                for raw in file:
                    change = _change(raw, self._config.fields) if len(raw) <= LINE_BYTES else None
                    found += [change] if change else []
                    bad += 1 if change is None and raw.strip() else 0
        except OSError as failure:
            raise Unavailable(
                f"The change record {shown(str(path))} cannot be read ({reason(failure)}); check the path."
            ) from None
        return found, bad


def _window(service: str, start: str, end: str, limit: int, limits: ReleaseLimits) -> Window:
    if len(service) > NAME_CHARS:
        raise Refused(f"service {shown(service)} is longer than {NAME_CHARS} characters; shorten it.")
    if not 1 <= limit <= limits.releases:
        raise Refused(f"limit {limit} is not from 1 to {limits.releases}; choose one that is.")
    return parse_window(start, end, seconds_max=limits.window_seconds)


def _tag(row: list[str]) -> dict[str, Any]:
    name = row[0]
    parts = TAG_OF_SERVICE.fullmatch(name)
    service = parts["service"] if parts else None
    return _entry(name, service, at=float(row[1]), kind="tag", identity=row[2], text=row[3])


def _change(raw: bytes, names: ChangeFields) -> dict[str, Any] | None:
    try:
        fields = json.loads(raw.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, Mapping):
        return None
    at = read_moment(field(fields, names.time))
    release = field(fields, names.release)
    if at is None or release is None:
        return None
    service = field(fields, names.service)
    named = valid_text(service)[:NAME_CHARS] if service is not None else None
    text = field(fields, names.text)
    return _entry(
        valid_text(release),
        named,
        at=at,
        kind="change",
        identity=None,
        text=valid_text(text) if text is not None else "",
    )


def _entry(
    release: str, service: str | None, *, at: float, kind: str, identity: str | None, text: str
) -> dict[str, Any]:
    return {
        "release": release[:NAME_CHARS],
        "service": service,
        "at": at,
        "kind": kind,
        "id": identity,
        "text": text[:TEXT_CHARS],
    }


def _answer(found: Iterable[dict[str, Any]], service: str, window: Window, limit: int) -> dict[str, Any]:
    inside = [
        one
        for one in found
        if window.start <= one["at"] <= window.end and (not service or one["service"] in (service, None))
    ]
    inside.sort(key=lambda one: (-one["at"], one["release"]))
    return {
        "service": service,
        "start": write_moment(window.start),
        "end": write_moment(window.end),
        "found": len(inside),
        "releases": [{**one, "at": write_moment(one["at"])} for one in inside[:limit]],
    }
