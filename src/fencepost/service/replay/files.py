"""A journal as a file: one JSON line for what it is of, then one line for each entry.

Rule 1: a file is read whole or refused by name: the line, the entry, and what is wrong with it.
Rule 2: each line holds the link of the hash chain after it, so that a changed byte is found where it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Raw, Struct

from fencepost.core.entries import CHAIN_START, ENTRY_VERSION, Entry, decode_body, encode_body, kind_of, link
from fencepost.core.errors import StoreCorrupt, StoreFailed, StoreNewer
from fencepost.core.messages import ModelProfile

FILE_VERSION = 1
# The end of a line: the link over all that stands before it, byte for byte.
_LINK = b',"link":"'


class Heading(Struct, frozen=True, omit_defaults=True):
    """The first line: which task, how many entries, and the model's profile where it is known."""

    fencepost_journal: int
    task: str
    entries: int
    profile: ModelProfile | None = None


class _Line(Struct, frozen=True):
    seq: int
    epoch: int
    at: float
    by: str
    attempt: int
    commit_id: str
    seconds: float
    kind: str
    v: int
    body: Raw


class JournalFile(Struct, frozen=True):
    """A journal that was read from a file."""

    task: str
    entries: tuple[Entry, ...]
    profile: ModelProfile | None = None


def write_journal(task: str, entries: Iterable[Entry], profile: ModelProfile | None = None) -> bytes:
    """The journal as the bytes of a file."""
    journal = tuple(entries)
    lines = [msgspec.json.encode(Heading(FILE_VERSION, task, len(journal), profile))]
    head = _begin(lines[0])
    for entry in journal:
        line = _Line(
            entry.seq,
            entry.epoch,
            entry.at,
            entry.by,
            entry.attempt,
            entry.commit_id,
            entry.seconds,
            kind_of(entry.body),
            ENTRY_VERSION,
            Raw(encode_body(entry.body)),
        )
        facts = msgspec.json.encode(line)[:-1]
        head = link(head, "line", facts)
        lines.append(facts + _LINK + head.encode() + b'"}')
    return b"\n".join(lines) + b"\n"


def _begin(heading: bytes) -> str:
    return link(CHAIN_START, "heading", heading)


def read_journal(data: bytes) -> JournalFile:
    """The journal in a file's bytes; raises StoreNewer or StoreCorrupt, naming the line and the entry."""
    if not data.endswith(b"\n"):
        last = data.count(b"\n") + 1
        raise StoreCorrupt(f"line {last} of the journal file is cut off; the file must end with a line's end")
    first, *rest = data[:-1].split(b"\n")
    heading = _heading(first)
    entries = tuple(_entries(_begin(first), rest))
    if len(entries) != heading.entries:
        raise StoreCorrupt(
            f"the journal file ends after entry {len(entries)} of {heading.entries}; its end is missing"
        )
    return JournalFile(heading.task, entries, heading.profile)


def readable_part(data: bytes) -> tuple[Entry, ...]:
    """The entries before the first that cannot be read."""
    entries: list[Entry] = []
    with contextlib.suppress(StoreFailed):
        first, *rest = data.split(b"\n")
        for entry in _entries(_begin(first), rest):
            entries.append(entry)  # noqa: PERF402 - each counts, also when a later one cannot be read
    return tuple(entries)


def _heading(line: bytes) -> Heading:
    try:
        heading = msgspec.json.decode(line, type=Heading)
    except (msgspec.DecodeError, UnicodeDecodeError) as why:
        raise StoreCorrupt(f"line 1 is not the heading of a journal file ({why})") from None
    if heading.fencepost_journal != FILE_VERSION:
        raise StoreNewer(
            f"the journal file has version {heading.fencepost_journal}, this Fencepost knows {FILE_VERSION}"
        )
    return heading


def _entries(head: str, lines: Iterable[bytes]) -> Iterator[Entry]:
    for seq, data in enumerate(lines, 1):
        where = f"line {seq + 1} of the journal file (entry {seq})"
        try:
            line = msgspec.json.decode(data, type=_Line)
        except (msgspec.DecodeError, UnicodeDecodeError) as why:
            raise StoreCorrupt(f"{where} cannot be read ({why})") from None
        if line.seq != seq:
            raise StoreCorrupt(f"{where} holds entry {line.seq}; entry {seq} is missing")
        try:
            body = decode_body(line.kind, line.v, bytes(line.body))
        except StoreFailed as why:
            raise type(why)(f"{where}: {why}") from None
        facts, _, told = data.rpartition(_LINK)
        head = link(head, "line", facts)
        if told != head.encode() + b'"}':
            before = "line 1 or " if seq == 1 else ""
            raise StoreCorrupt(f"{before}{where} is not what was written: its link does not fit")
        yield Entry(seq, line.epoch, line.at, line.by, line.attempt, line.commit_id, line.seconds, body)
