"""Entries are a closed list, stored as exact bytes, chained by kind and body, and refused when they are newer."""

from __future__ import annotations

import hashlib
import typing

import msgspec
import pytest
from msgspec import Raw

from fencepost.core import entries
from fencepost.core.entries import (
    CHAIN_START,
    ENTRY_VERSION,
    KINDS,
    NO_VALUE,
    AnswerRejected,
    AttemptFailed,
    Body,
    CallStatus,
    ChildEnded,
    ChildOpened,
    Claim,
    ContextElided,
    DefinitionAccepted,
    EntryBody,
    Stopped,
    decode_body,
    encode_body,
    evidence_id,
    kind_of,
    link,
)
from fencepost.core.errors import StoreCorrupt, StoreNewer
from fencepost.core.history import Log
from fencepost.core.lifecycle import StopReason
from fencepost.core.messages import (
    AssistantMessage,
    Message,
    ModelProfile,
    ModelRequest,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    encode_message,
    size_of,
)
from tests.core import tables

# The closed list of contract 9, written out again.
LIST = [
    "Opened", "ModelAsked", "AttemptFailed", "Replied", "CallStarted", "CallEnded", "ApprovalAsked",
    "ApprovalDecided", "OutcomeResolved", "AnswerRejected", "ContextElided", "DefinitionAccepted", "ChildOpened",
    "ChildEnded", "Stopped",
]  # fmt: skip

QUOTED = Claim("it said so", "ev-1.0", quote="connection refused")
POINTED = Claim("it was 8", "ev-1.0", pointer="/rate", value=tables.raw("8"))
NULL = Claim("nothing", "ev-1.0", pointer="/none", value=tables.raw("null"))
ONE_OF_EACH: list[EntryBody] = [
    tables.opened(),
    tables.asked(),
    AttemptFailed(1, 1, "status", "too many requests", 429, 2.5, 40, 80),
    tables.replied(
        1,
        tables.call("read", n=1),
        tables.refused("read"),
        tables.denied("write", "no"),
        answer=tables.answer("8", QUOTED, POINTED, NULL),
        answer_id="a",
        opaque=(Raw(b'{"thinking":"so"}'),),
    ),
    tables.started(1, operation="pay-7"),
    tables.ended(1, content='{"rate": 8}', json=True, cut=True, artifact="abc", synthetic=True),
    tables.asks(1),
    tables.decided(1),
    tables.resolved(1),
    AnswerRejected(1, "invalid_evidence", "no such id", "a"),
    ContextElided(1, 0, sent_id="a", replacement="elided"),
    DefinitionAccepted("d2", tables.TOOLS, "words", "local/boss"),
    ChildOpened(1, 0, "child"),
    ChildEnded("child", StopReason.COMPLETED, 100, None),
    Stopped(StopReason.COMPLETED, answer=tables.answer("8", POINTED), settled_nano=None),
]


def test_the_list_of_kinds_is_the_contract_s() -> None:
    assert list(KINDS) == LIST
    assert {kind.__name__ for kind in typing.get_args(EntryBody)} == set(LIST)
    assert [kind_of(body) for body in ONE_OF_EACH] == LIST


@pytest.mark.parametrize("body", ONE_OF_EACH, ids=kind_of)
def test_a_body_comes_back_as_it_was_and_is_the_same_bytes_again(body: EntryBody) -> None:
    data = encode_body(body)
    back = decode_body(kind_of(body), ENTRY_VERSION, data)
    assert encode_body(back) == data
    assert type(back) is type(body)
    if not isinstance(body, entries.Replied | Stopped):  # a Raw is equal to itself alone
        assert back == body


@pytest.mark.parametrize("body", ONE_OF_EACH, ids=kind_of)
def test_a_body_cannot_be_changed(body: EntryBody) -> None:
    with pytest.raises(AttributeError, match="immutable"):
        setattr(body, body.__struct_fields__[0], None)
    for name in body.__struct_fields__:
        assert not isinstance(getattr(body, name), list | dict | set | bytearray)


def test_a_claim_without_a_value_and_one_of_null_stay_apart() -> None:
    decode = msgspec.json.Decoder(Claim).decode
    assert bytes(decode(msgspec.json.encode(QUOTED)).value) == b""
    assert bytes(decode(msgspec.json.encode(NULL)).value) == b"null"
    assert Claim("x", "ev-1.0").value is NO_VALUE


@pytest.mark.parametrize(("kind", "version"), [("Opened", 2), ("Opened", 0), ("Thought", 1), ("", 1)])
def test_a_kind_or_version_nobody_knows_is_refused_by_name(kind: str, version: int) -> None:
    with pytest.raises(StoreNewer, match=f"{kind!r} version {version}.*upgrade"):
        decode_body(kind, version, encode_body(tables.opened()))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"type":"Stopped"}',
        b'{"type":"Opened"}',
        b'{"type":"Stopped","reason":"BORED"}',
        b"\xff",
        b"[]",
    ],
)
def test_bytes_that_are_no_such_body_are_a_damaged_store(data: bytes) -> None:
    with pytest.raises(StoreCorrupt, match="restore a backup"):
        decode_body("Stopped", ENTRY_VERSION, data)


def test_the_chain_covers_kind_body_and_everything_before() -> None:
    assert hashlib.sha256(b"fencepost/journal/v1\0").hexdigest() == CHAIN_START
    head = link(CHAIN_START, "Opened", b"{}")
    assert head == hashlib.sha256(CHAIN_START.encode() + b"\0Opened\0{}").hexdigest()
    assert (
        len(
            {
                head,
                link(CHAIN_START, "Stopped", b"{}"),
                link(CHAIN_START, "Opened", b"[]"),
                link(head, "Opened", b"{}"),
            }
        )
        == 4
    )


def test_only_a_good_result_is_ok_and_its_id_names_its_call() -> None:
    assert evidence_id(3, 1) == "ev-3.1"
    assert [status.value for status in CallStatus] == [
        "ok", "failed", "timeout", "denied", "cancelled", "not_executed", "unknown",
    ]  # fmt: skip


def test_bodies_are_values() -> None:
    assert all(issubclass(kind, Body) for kind in KINDS.values())
    assert hash(tables.ended(1)) == hash(tables.ended(1))


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (UserMessage("words"), 5 + 20),
        (AssistantMessage("so"), 2 + 40),
        (AssistantMessage("", (ToolCall("i", "read", "{}"), ToolCall("j", "put", ""))), 40 + 46 + 43),
        (ToolMessage("i", "read", "fine"), 4 + 4 + 40),
        (ToolMessage("i", "read", "naïve"), 6 + 4 + 40),
    ],
)
def test_the_size_of_a_message_is_its_text_and_a_little_around_it(message: object, size: int) -> None:
    assert isinstance(message, UserMessage | AssistantMessage | ToolMessage)
    assert size_of(message) == size
    assert (
        msgspec.json.decode(encode_message(message))["type"]
        == type(message).__name__.removesuffix("Message").lower()
    )


def test_unknown_usage_is_unknown_and_never_zero() -> None:
    assert Usage(3, 4).tokens == 7
    assert Usage(0, 0).tokens == 0
    assert Usage(None, 4).tokens is None
    assert Usage(3, None).tokens is None


def test_an_unknown_price_is_unknown_and_never_zero() -> None:
    assert ModelProfile("m", input_nano=2, output_nano=3).cost(10, 100) == 320
    assert ModelProfile("m", input_nano=0, output_nano=0).cost(10, 100) == 0
    assert ModelProfile("m", output_nano=3).cost(10, 100) is None
    assert ModelProfile("m", input_nano=2).cost(10, 100) is None


def test_messages_are_rendered_alike_whether_they_come_from_a_task_or_from_a_caller() -> None:
    words = (UserMessage("one"), AssistantMessage("two"))
    log: Log[Message] = Log()
    for message in words:
        log = log.append(message)
    of_task, of_caller = (ModelRequest("", given, (), 1, 1, 1.0, 1) for given in (log, words))
    wanted = [encode_message(message) for message in words]
    assert of_task.rendered(encode_message) == of_caller.rendered(encode_message) == wanted
