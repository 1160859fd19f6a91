"""Journals that a version of Fencepost left behind fold to the same state and replay to the same chain, for ever.

Rule 1: a file in first/ or v1/ is never written again. When its test fails, the program no longer reads what it wrote.
Rule 2: what a state amounts to is written out in `told`: the fold may be built otherwise, its meaning may not change.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fencepost import StoreFailed
from fencepost.core.entries import CHAIN_START, Entry, Opened, Stopped, encode_body, kind_of, link
from fencepost.core.errors import StoreCorrupt, StoreNewer
from fencepost.core.state import State, fold
from fencepost.service.replay.files import read_journal, readable_part, write_journal
from fencepost.service.replay.replaying import replay
from tests.golden.shapes import PROFILE, SHAPES, TASK, agent_of

# In "first" are journals of the program as it was before it could replay any.
FILES = sorted(path for folder in ("first", "v1") for path in Path(__file__).parent.glob(f"{folder}/*.jsonl"))
# How each of them ended, and the digest of what it folds to.
EXPECTED = msgspec.json.decode(
    Path(__file__).with_name("expected.json").read_bytes(), type=dict[str, list[str]]
)


def told(state: State) -> dict[str, Any]:
    """Everything a folded journal means, in words of the contract."""
    return {
        "opened": state.opened,
        "tools": sorted(state.tools),
        "instructions": state.instructions,
        "messages": list(state.messages),
        "spent": [state.steps, state.calls, state.tokens, state.cost_nano, state.attempts],
        "asked": state.asked,
        "failed": state.failed,
        "reply": state.reply,
        "open": [
            [
                c.call,
                c.phase.value,
                c.starts,
                c.asked,
                c.decision,
                c.consumed,
                c.resolved,
                c.operation,
                c.ended,
            ]
            for c in state.open
        ],
        "done": [[done.ended, done.writes_before] for done in state.done],
        "writes": list(state.writes),
        "answer_tries": state.answer_tries,
        "stopped": state.stopped,
        "waits_for": state.waits_for,
    }


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def digest(entries: tuple[Entry, ...]) -> str:
    """The digest of what the journal folds to."""
    state = fold(entry.body for entry in entries)
    return hashlib.sha256(msgspec.json.encode(told(state), order="sorted")).hexdigest()


def chain_of(entries: tuple[Entry, ...]) -> str:
    head = CHAIN_START
    for entry in entries:
        head = link(head, kind_of(entry.body), encode_body(entry.body))
    return head


def reason_of(entries: tuple[Entry, ...]) -> str:
    last = entries[-1].body
    assert isinstance(last, Stopped)
    return last.reason.value


def test_every_shape_but_the_long_one_has_a_golden_file_and_an_expectation() -> None:
    assert {name_of(path) for path in FILES} == set(EXPECTED)
    assert {path.stem for path in FILES if path.parent.name == "v1"} == set(SHAPES) - {"long"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_golden_journal_folds_to_the_state_it_always_folded_to(path: Path) -> None:
    entries = read_journal(path.read_bytes()).entries
    assert [reason_of(entries), digest(entries)] == EXPECTED[name_of(path)]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_golden_journal_replays_to_its_chain(path: Path) -> None:
    journal = read_journal(path.read_bytes())
    for profile in (journal.profile, None):
        found = replay(journal.entries, profile=profile)
        assert found.difference is None, str(found.difference)
        assert (found.entries, found.chain) == (len(journal.entries), chain_of(journal.entries))


@pytest.mark.parametrize("name", SHAPES)
async def test_a_journal_of_now_replays_to_its_chain_with_its_agent(name: str) -> None:
    entries = await SHAPES[name]()
    opened = entries[0].body
    assert isinstance(opened, Opened)
    found = await asyncio.to_thread(replay, entries, agent_of(name, opened))
    assert found.difference is None, str(found.difference)
    assert found.chain == found.recorded == chain_of(entries)
    if name == "long":
        assert (found.requests, reason_of(entries)) == (100, "COMPLETED")


# --- bad files


DATA = (Path(__file__).parent / "v1" / "cancelled.jsonl").read_bytes()
WHOLE = read_journal(DATA)


def test_a_file_reads_back_as_it_was_written() -> None:
    assert write_journal(TASK, WHOLE.entries, PROFILE) == DATA
    assert (WHOLE.task, WHOLE.profile) == (TASK, PROFILE)


def test_a_file_cut_at_any_byte_is_refused_and_what_is_whole_is_readable() -> None:
    for end in range(len(DATA)):
        with pytest.raises(StoreCorrupt) as refused:
            read_journal(DATA[:end])
        line = DATA[:end].count(b"\n") + 1
        named = f"line {line} " if not DATA[:end].endswith(b"\n") else f"ends after entry {line - 2} of 8"
        assert named in str(refused.value) or "heading" in str(refused.value)
        whole = line - 1 if DATA[end : end + 1] == b"\n" else line - 2  # only the line's end is missing
        assert readable_part(DATA[:end]) == WHOLE.entries[: max(0, whole)]


def test_a_file_with_a_flipped_bit_is_refused_and_the_entry_named() -> None:
    for at in range(len(DATA) - 1):
        flipped = DATA[:at] + bytes([DATA[at] ^ (1 << at % 8)]) + DATA[at + 1 :]
        line = DATA[:at].count(b"\n") + 1
        with pytest.raises(StoreFailed) as refused:
            read_journal(flipped)
        assert "line 1" in str(refused.value) if line == 1 else f"line {line} " in str(refused.value)
        readable = readable_part(flipped)
        assert readable == WHOLE.entries[: len(readable)]
        assert len(readable) == max(0, line - 2) or b"\n" in DATA[at : at + 1]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"fencepost_journal":1', b'"fencepost_journal":2', "version 2, this Fencepost knows 1"),
        (
            b'"kind":"ModelAsked","v":1',
            b'"kind":"ModelAsked","v":2',
            "(entry 2): journal entry 'ModelAsked' version 2",
        ),
        (b'"kind":"Replied"', b'"kind":"Thought"', "(entry 3): journal entry 'Thought' version 1"),
    ],
    ids=["file", "entry", "kind"],
)
def test_a_file_of_a_newer_version_is_refused_by_name(old: bytes, new: bytes, said: str) -> None:
    with pytest.raises(StoreNewer) as refused:
        read_journal(DATA.replace(old, new, 1))
    assert said in str(refused.value)


def test_a_journal_that_begins_late_or_has_a_hole_is_no_journal() -> None:
    for entries, said in (
        ((), "empty"),
        (WHOLE.entries[1:], "entry 1 is missing"),
        ((*WHOLE.entries[:3], *WHOLE.entries[4:]), "entry 4 is missing: the next one is 5"),
        ((WHOLE.entries[0], msgspec.structs.replace(WHOLE.entries[0], seq=2)), "Opened is entry 1"),
        ((*WHOLE.entries, msgspec.structs.replace(WHOLE.entries[2], seq=9)), "entry 9 follows Stopped"),
    ):
        with pytest.raises(StoreCorrupt) as refused:
            replay(entries)
        assert said in str(refused.value)
