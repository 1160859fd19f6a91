"""A journal that no run wrote is refused or named as different; it never breaks the replay or makes it wait.

Rule: each forgery is one small change of a golden journal.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fencepost import Replay
from fencepost.core.entries import ApprovalDecided, CallStarted, Entry, ModelAsked, Stopped
from fencepost.core.errors import StoreCorrupt
from fencepost.service.replay.files import read_journal
from fencepost.service.replay.replaying import replay
from tests.golden.shapes import PROFILE

FILES = sorted((Path(__file__).parents[1] / "golden" / "v1").glob("*.jsonl"))


def journal(name: str) -> tuple[Entry, ...]:
    return read_journal(next(path for path in FILES if path.stem == name).read_bytes()).entries


def numbered(*entries: Entry) -> tuple[Entry, ...]:
    return tuple(replace(entry, seq=seq) for seq, entry in enumerate(entries, 1))


def forgeries(entries: tuple[Entry, ...]) -> Iterator[tuple[Entry, ...]]:
    for i in range(1, len(entries)):
        yield numbered(*entries[:i], *entries[i + 1 :])
        yield numbered(*entries[: i + 1], *entries[i:])
        yield numbered(*entries[:i], *reversed(entries[i : i + 2]), *entries[i + 2 :])


def played(entries: tuple[Entry, ...]) -> Replay | StoreCorrupt:
    try:
        return replay(entries)
    except StoreCorrupt as why:
        return why


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_entry_left_out_doubled_or_moved_is_refused_or_named(path: Path) -> None:
    entries = read_journal(path.read_bytes()).entries
    for forged in forgeries(entries):
        found = played(forged)
        if isinstance(found, StoreCorrupt):
            assert "journal entry " in str(found)
        elif found.difference is not None:
            assert 1 <= found.difference.seq <= len(forged)
            assert found.entries == found.difference.seq - 1


def first(entries: tuple[Entry, ...], kind: type) -> int:
    return next(i for i, entry in enumerate(entries) if isinstance(entry.body, kind))


def test_a_start_left_out_is_named_where_the_call_ends() -> None:
    entries = journal("reads")
    at = first(entries, CallStarted)
    found = replay(numbered(*entries[:at], *entries[at + 1 :]))
    assert str(found.difference).startswith(
        f"entry {at + 1} (CallEnded): recorded CallEnded step 1 position 0"
    )
    assert "replayed CallStarted" in str(found.difference)


def test_a_decision_that_nobody_asked_for_is_named() -> None:
    entries = journal("approvals")
    at = first(entries, ApprovalDecided)
    found = replay(numbered(*entries[: at + 1], *entries[at:]))
    assert str(found.difference) == (
        f"entry {at + 2} (ApprovalDecided): recorded ApprovalDecided,"
        " replayed nothing: nobody was asked about call 1.0"
    )


def test_an_end_where_the_loop_goes_on_is_named() -> None:
    entries = journal("reads")
    stopped = entries[-1]
    at = first(entries, CallStarted)
    found = replay(numbered(*entries[:at], stopped))
    assert isinstance(stopped.body, Stopped)
    assert str(found.difference).startswith(f"entry {at + 1} (Stopped): recorded Stopped reason COMPLETED")


def test_what_follows_where_the_loop_has_ended_is_named() -> None:
    entries = journal("approvals")
    asked = first(entries, ApprovalDecided) - 1
    went_on = replace(entries[asked], body=ModelAsked(2, 1, 100), epoch=entries[asked].epoch)
    found = replay(numbered(*entries[: asked + 1], went_on), profile=PROFILE)
    assert str(found.difference) == (
        f"entry {asked + 2} (ModelAsked): recorded ModelAsked, replayed nothing: the run ended before it"
    )
