"""Logs from JSON-lines files: one file, or a folder of them.

Rules of this file:
- Search is literal: a model's text is compared, never compiled.
- Reading is streaming and bounded (files, bytes, length of a line, seconds). Whatever was not read or not
  understood is counted in the answer, and `cut` says why the search ended early.
- Only regular files inside the folder are opened; a link that leads outside is refused and counted.
- Log writers agree on nothing: names of fields are configurable, and lines without them are still found.

The answer: `service`, `contains`, `level`, `start`, `end`, `matched`, `lines` (earliest first: `time`,
`service`, `level`, `message`, `file`), `patterns` (messages with numbers and ids blanked, most frequent
first: `pattern`, `count`, `level`, `first`, `last`), `in_window` (lines of the service and window, whatever
their level and text: 0 means that there is nothing to search), `scanned_lines`, `scanned_bytes`, `bad_lines`,
`skipped_files`, `cut`.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import os
import re
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from fencepost.agents.incident.sources.errors import Refused, Unavailable
from fencepost.agents.incident.sources.process import reason
from fencepost.agents.incident.sources.window import (
    Window,
    parse_window,
    read_moment,
    shown,
    write_moment,
)

LEVELS = ("trace", "debug", "info", "warn", "error", "fatal")
LEVEL_WORDS = {
    "trace": 0, "verbose": 0, "debug": 1, "info": 2, "information": 2, "notice": 2, "warn": 3, "warning": 3,
    "error": 4, "err": 4, "severe": 4, "fatal": 5, "critical": 5, "crit": 5, "panic": 5, "emergency": 5,
}  # fmt: skip
LEVEL_IN_TEXT = re.compile(r"\b(TRACE|DEBUG|INFO|WARN|WARNING|ERROR|SEVERE|FATAL|CRITICAL)\b")
LEVEL_CHARS = 160  # of a message without a level field: where a level word stands if there is one
POD_SUFFIX = re.compile(
    r"-[a-z0-9]{6,10}-[a-z0-9]{5}$|-[0-9]{1,4}$"
)  # of a Deployment's or StatefulSet's pod
VARYING = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F-]{27,}|\b[0-9a-fA-F]*[0-9][0-9a-fA-F]{5,}\b|\d+(?:\.\d+)?")
PATTERN_CHARS = 200  # of a message: its start says which code wrote it
PATTERNS_KEPT = 1_000  # while counting; after that only known ones are counted
PATTERNS_SHOWN = 10
SKIPPED_SHOWN = 20
CONTAINS_CHARS = 200  # a literal longer than that is a mistake
NAME_CHARS = 128


class LogFields(msgspec.Struct, frozen=True, kw_only=True):
    """Names of fields, the first present one counts; a dot goes into an object."""

    time: tuple[str, ...] = ("time", "timestamp", "@timestamp", "ts", "t")
    service: tuple[str, ...] = ("service", "service.name", "app", "pod", "kubernetes.pod_name", "container")
    level: tuple[str, ...] = ("level", "severity", "log.level", "lvl")
    message: tuple[str, ...] = ("message", "msg", "line", "log", "body")


class LogLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one search may read and return."""

    window_seconds: float = 24 * 3600  # as for metrics
    lines: int = 50  # returned; with the characters below about 25 KB, which fits what a model is shown
    message_chars: int = 400
    files: int = 500
    scanned_bytes: int = 256 * 1024 * 1024  # about two seconds of reading
    line_bytes: int = 256 * 1024  # a longer line is a dump, not a message; it counts as bad
    seconds: float = 30.0


class LogsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where the logs are and how they are written; `synthetic` marks the answer of bundled data."""

    path: str
    suffixes: tuple[str, ...] = (".jsonl", ".ndjson", ".json", ".log")
    fields: LogFields = LogFields()
    limits: LogLimits = LogLimits()
    synthetic: bool = False


class LogFiles:
    """The logs of a file or folder."""

    def __init__(self, config: LogsConfig) -> None:
        self._config = config

    async def search(
        self,
        service: str = "",
        *,
        start: str,
        end: str,
        contains: str = "",
        level: str = "",
        limit: int = 20,
    ) -> dict[str, Any]:
        """The lines of the window that match everything given. Raises `SourceError`.

        An empty service, text or level means any; a level means this one or worse.
        """
        question = _question(
            self._config, service, start=start, end=end, contains=contains, level=level, limit=limit
        )
        # A thread reads, so that a slow disk does not hold the loop; it looks at `stop` between lines.
        stop = threading.Event()
        try:
            return await asyncio.to_thread(_Search(self._config, question, stop).run)
        finally:
            stop.set()


class _Question(msgspec.Struct, frozen=True, kw_only=True):
    service: str
    contains: str
    level: int
    window: Window
    limit: int


def _question(
    config: LogsConfig, service: str, *, start: str, end: str, contains: str, level: str, limit: int
) -> _Question:
    if len(service) > NAME_CHARS:
        raise Refused(f"service {shown(service)} is longer than {NAME_CHARS} characters; shorten it.")
    if len(contains) > CONTAINS_CHARS:
        raise Refused(f"contains is longer than {CONTAINS_CHARS} characters; search for a part of it.")
    if level and level.lower() not in LEVEL_WORDS:
        raise Refused(f"level {shown(level)} is unknown; use one of: {', '.join(LEVELS)}.")
    if not 1 <= limit <= config.limits.lines:
        raise Refused(f"limit {limit} is not from 1 to {config.limits.lines}; choose one that is.")
    window = parse_window(start, end, seconds_max=config.limits.window_seconds)
    lowest = LEVEL_WORDS[level.lower()] if level else -1
    return _Question(service=service, contains=contains, level=lowest, window=window, limit=limit)


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    service: str
    level: int
    message: str


class _Search:
    """One search: what was read so far, and what of it is kept."""

    def __init__(self, config: LogsConfig, question: _Question, stop: threading.Event) -> None:
        self.config = config
        self.question = question
        self.stop = stop
        self.matched = self.in_window = self.lines = self.bytes = self.bad = 0
        self.kept: list[tuple[float, int, dict[str, Any]]] = []  # a heap, the latest on top
        self.patterns: dict[str, dict[str, Any]] = {}
        self.skipped: list[str] = []
        self.cut: str | None = None
        self.ends_at = time.monotonic() + config.limits.seconds

    def run(self) -> dict[str, Any]:
        root = Path(self.config.path)
        if not root.exists():
            raise Unavailable(f"No logs at {shown(self.config.path)}; check the path in the configuration.")
        for files, path in enumerate(self._files(root)):
            if files == self.config.limits.files:
                self.cut = f"more than {files} files"
            if self.cut:
                break
            self._read(path, root)
        return self._answer()

    def _files(self, root: Path) -> Iterator[Path]:
        if root.is_file():
            yield root
            return
        inside = root.resolve()
        for folder, names, files in os.walk(root, followlinks=False):
            names.sort()
            self.skipped += [
                f"{_named(Path(folder) / n, root)} (a link)" for n in names if _is_link(folder, n)
            ]
            for name in sorted(files):
                path = Path(folder) / name
                if not name.endswith(self.config.suffixes):
                    self.skipped.append(f"{_named(path, root)} (not a log file)")
                elif not path.resolve().is_relative_to(inside):
                    self.skipped.append(f"{_named(path, root)} (a link out of the folder)")
                else:
                    yield path

    def _read(self, path: Path, root: Path) -> None:
        name = _named(path, root)
        try:
            # Without O_NONBLOCK, opening a pipe that somebody put there would wait for a writer.
            number = os.open(path.resolve(), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as failure:
            self.skipped.append(f"{name} ({reason(failure)})")
            return
        with os.fdopen(number, "rb") as file:
            if not stat.S_ISREG(os.fstat(number).st_mode):
                self.skipped.append(f"{name} (not a regular file)")
                return
            self._read_lines(file, name)

    def _read_lines(self, file: BinaryIO, name: str) -> None:
        longest = self.config.limits.line_bytes
        while raw := file.readline(longest + 1):
            self.bytes += len(raw)
            self.lines += 1
            if len(raw) > longest and not raw.endswith(b"\n"):
                self.bad += 1
                self._skip_rest_of_line(file)
            else:
                self._look_at(raw, name)
            self.cut = self.cut or self._out_of_bounds()
            if self.cut:
                return

    def _skip_rest_of_line(self, file: BinaryIO) -> None:
        while part := file.readline(self.config.limits.line_bytes):
            self.bytes += len(part)
            if part.endswith(b"\n") or self._out_of_bounds():
                return

    def _out_of_bounds(self) -> str | None:
        if self.bytes >= self.config.limits.scanned_bytes:
            return f"{self.config.limits.scanned_bytes} bytes were read"
        if time.monotonic() > self.ends_at:
            return f"{self.config.limits.seconds:g} s were over"
        return "the search was cancelled" if self.stop.is_set() else None

    def _look_at(self, raw: bytes, name: str) -> None:
        if not raw.strip():
            return
        try:
            fields = json.loads(raw.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            fields = None
        record = _record(fields, self.config.fields, Path(name)) if isinstance(fields, dict) else None
        if record is None:
            self.bad += 1
        elif _is_in_window(record, self.question):
            self.in_window += 1
            if record.level >= self.question.level and self.question.contains in record.message:
                self._keep(record, name)

    def _keep(self, record: _Record, name: str) -> None:
        self.matched += 1
        line = {
            "time": write_moment(record.at),
            "service": record.service,
            "level": LEVELS[record.level] if record.level >= 0 else None,
            "message": record.message[: self.config.limits.message_chars],
            "file": name,
        }
        item = (-record.at, -self.matched, line)
        if len(self.kept) < self.question.limit:
            heapq.heappush(self.kept, item)
        else:
            heapq.heappushpop(self.kept, item)
        pattern = VARYING.sub("#", record.message[:PATTERN_CHARS])
        seen = self.patterns.get(pattern)
        if seen is None and len(self.patterns) < PATTERNS_KEPT:
            level = line["level"]
            seen = {"pattern": pattern, "count": 0, "level": level, "first": record.at, "last": record.at}
            self.patterns[pattern] = seen
        if seen is not None:
            seen["count"] += 1
            seen["first"] = min(seen["first"], record.at)
            seen["last"] = max(seen["last"], record.at)

    def _answer(self) -> dict[str, Any]:
        asked = self.question
        frequent = sorted(self.patterns.values(), key=lambda p: (-p["count"], p["pattern"]))[:PATTERNS_SHOWN]
        answer: dict[str, Any] = {
            "service": asked.service,
            "contains": asked.contains,
            "level": LEVELS[asked.level] if asked.level >= 0 else None,
            "start": write_moment(asked.window.start),
            "end": write_moment(asked.window.end),
            "in_window": self.in_window,
            "matched": self.matched,
            "lines": [line for _, _, line in sorted(self.kept, key=lambda k: (-k[0], -k[1]))],
            "patterns": [
                {**p, "first": write_moment(p["first"]), "last": write_moment(p["last"])} for p in frequent
            ],
            "scanned_lines": self.lines,
            "scanned_bytes": self.bytes,
            "bad_lines": self.bad,
            "skipped_files": self.skipped[:SKIPPED_SHOWN],
            "skipped_files_count": len(self.skipped),
            "cut": self.cut,
        }
        return {"synthetic": True, **answer} if self.config.synthetic else answer


def field(fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """The value of the first of these names that is there, or None."""
    for name in names:
        if name in fields:
            return fields[name]
        value: Any = fields
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def valid_text(value: object) -> str:
    """The value as text that UTF-8 can hold: lone surrogates become a question mark."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text.encode("utf-8", "replace").decode("utf-8")


def _record(fields: Mapping[str, Any], names: LogFields, path: Path) -> _Record | None:
    at = read_moment(field(fields, names.time))
    message = field(fields, names.message)
    if at is None or message is None:
        return None
    text = valid_text(message)
    service = field(fields, names.service)
    named = valid_text(service) if isinstance(service, str) else path.name.split(".", 1)[0]
    level = field(fields, names.level)
    return _Record(
        at=at,
        service=POD_SUFFIX.sub("", named)[:NAME_CHARS],
        level=_level_of(level) if level is not None else _level_in(text),
        message=text,
    )


def _level_of(value: object) -> int:
    return LEVEL_WORDS.get(str(value).lower(), -1)


def _level_in(text: str) -> int:
    found = LEVEL_IN_TEXT.search(text[:LEVEL_CHARS])
    return LEVEL_WORDS[found.group().lower()] if found else -1


def _is_in_window(record: _Record, question: _Question) -> bool:
    inside = question.window.start <= record.at <= question.window.end
    return inside and (not question.service or record.service == question.service)


def _named(path: Path, root: Path) -> str:
    name = path.name if path == root else str(path.relative_to(root))
    return valid_text(os.fsencode(name).decode("utf-8", "replace"))


def _is_link(folder: str, name: str) -> bool:
    return (Path(folder) / name).is_symlink()
