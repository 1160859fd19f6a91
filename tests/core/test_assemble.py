"""Fragments become one whole reply or nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import Raw

from fencepost.core.assemble import CALLS_MOST, REPLY_CHARS_MOST, Assembler
from fencepost.core.errors import ModelFailed
from fencepost.core.messages import Finish, Reply, ToolCall, Usage


def test_fragments_are_joined_in_the_order_of_the_calls_index() -> None:
    stream = Assembler()
    stream.call(1, id="b")
    stream.text("so ")
    stream.arguments(1, '{"n"')
    stream.call(0, id="a", name="read")
    stream.call(1, name="write")
    stream.arguments(0, "{}")
    stream.arguments(1, ": 1}")
    stream.text("then")
    usage = Usage(1, 2)
    reply = stream.finish(Finish.TOOL_CALLS, usage=usage, opaque=(Raw(b"{}"),), model="m")
    calls = (ToolCall("a", "read", "{}"), ToolCall("b", "write", '{"n": 1}'))
    assert reply == Reply("so then", calls, Finish.TOOL_CALLS, usage=usage, opaque=(Raw(b"{}"),), model="m")


def test_nothing_but_an_end_is_an_empty_reply() -> None:
    assert Assembler().finish(Finish.STOP) == Reply()


@pytest.mark.parametrize("index", [0, 7])
def test_a_call_s_id_and_name_may_be_repeated_but_never_change(index: int) -> None:
    stream = Assembler()
    stream.call(index, id="a", name="read")
    stream.call(index, id="a", name="read")
    stream.call(index)
    for change in ({"id": "b"}, {"name": "write"}):
        with pytest.raises(ModelFailed, match=f"renamed call {index}") as caught:
            stream.call(index, **change)
        assert (caught.value.kind, caught.value.retriable) == ("protocol", False)


LATE: dict[str, Callable[[Assembler], object]] = {
    "words": lambda stream: stream.text("x"),
    "a call": lambda stream: stream.call(0, id="a"),
    "arguments": lambda stream: stream.arguments(0, "{}"),
    "empty words": lambda stream: stream.text(""),
}


@pytest.mark.parametrize("name", LATE)
def test_nothing_comes_after_the_end(name: str) -> None:
    stream = Assembler()
    stream.finish(Finish.STOP)
    with pytest.raises(ModelFailed, match="went on after its end"):
        LATE[name](stream)


def test_a_stream_ends_once() -> None:
    stream = Assembler()
    stream.finish(Finish.STOP)
    with pytest.raises(ModelFailed, match="ended twice"):
        stream.finish(Finish.STOP)


def test_a_stream_that_never_ends_costs_no_more_than_the_bound() -> None:
    stream, piece = Assembler(), "x" * (REPLY_CHARS_MOST // 4)
    for _ in range(2):
        stream.text(piece)
        stream.arguments(0, piece)
    with pytest.raises(ModelFailed, match="longer than"):
        stream.text("x")
    with pytest.raises(ModelFailed, match="longer than"):
        stream.arguments(0, "x")


def test_a_flood_of_calls_is_cut_off() -> None:
    stream = Assembler()
    for index in range(CALLS_MOST):
        stream.call(index, id=str(index))
    stream.call(0, name="read")
    with pytest.raises(ModelFailed, match=f"more than {CALLS_MOST} calls"):
        stream.call(CALLS_MOST, id="one more")
