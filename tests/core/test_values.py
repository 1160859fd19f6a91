"""The boundary of stored values (contract 8.4, L32): one form for each kind of value, never an exception."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import json
import numbers
import pathlib
import time
import types
import uuid
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core import values
from fencepost.core.canonical import digest
from fencepost.core.values import MAX_DEPTH, MAX_DIGITS, MAX_WHOLE, StoredValue, stored

LIMIT = 64 * 1024


class Level(enum.Enum):
    HIGH = "high"
    SPAN = (1, 2)


class Code(enum.IntEnum):
    OK = 200


class Word(enum.StrEnum):
    YES = "yes"


@dataclasses.dataclass
class Window:
    start: dt.date
    rate: float


class Release(msgspec.Struct, tag="release", rename="camel"):
    git_ref: str
    note: str | msgspec.UnsetType = msgspec.UNSET


class Point(NamedTuple):
    x: int
    y: int


class Model(pydantic.BaseModel):
    name: str
    raw: bytes


class Plain(msgspec.Struct):
    n: int


class Count:
    """A whole number of another library."""

    def __int__(self) -> int:
        return 3


class Ratio:
    """A real number of another library."""

    def __float__(self) -> float:
        return 0.25


numbers.Integral.register(Count)
numbers.Real.register(Ratio)


class Awkward:
    """Whatever is asked of it, it raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __iter__(self) -> Any:
        raise AssertionError("consumed")


class AwkwardModel:
    model_fields = ()

    def model_dump(self) -> Any:
        raise OSError("disk")


@dataclasses.dataclass
class Emptied:
    gone: int


def emptied() -> Emptied:
    value = Emptied(1)
    del value.gone
    return value


THREE_HOURS = dt.timedelta(hours=3)
TIME = dt.datetime(2022, 8, 22, 3, 51, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (7, "7"),
        (0.08, "0.08"),
        (float("nan"), "NaN"),
        ([float("nan"), float("inf"), -float("inf")], '["NaN","Infinity","-Infinity"]'),
        ({"b": 1, "a": [None, 1.5]}, '{"a":[null,1.5],"b":1}'),
        ((1, "x"), '[1,"x"]'),
        ({3, 1, 2}, "[1,2,3]"),
        (frozenset({"b", "a"}), '["a","b"]'),
        ({1: "a", "1": "b", None: 1, False: 2}, '{"1":"a","1 (2)":"b","false":2,"null":1}'),
        ({"1": 0, 1.0: 1, Level.HIGH: 2, (1, 2): 3}, '{"1":0,"1.0":1,"[1,2]":3,"high":2}'),
        (Level.HIGH, "high"),
        (Level.SPAN, "[1,2]"),
        (Code.OK, "200"),
        (Word.YES, "yes"),
        (Window(dt.date(2022, 8, 22), 0.5), '{"rate":0.5,"start":"2022-08-22"}'),
        (Release("v1"), '{"gitRef":"v1","type":"release"}'),
        (Plain(1), '{"n":1}'),
        ([Count(), Ratio()], "[3,0.25]"),
        ({1: 0, "1": 1, pathlib.PurePosixPath("1"): 2}, '{"1":0,"1 (2)":1,"1 (3)":2}'),
        ({1: 0, "1 (2)": 9, "1": 1}, '{"1":0,"1 (2)":9,"1 (3)":1}'),
        (Point(1, 2), '{"x":1,"y":2}'),
        (Model(name="n", raw=b"\xff"), '{"name":"n","raw":{"base64":"/w==","size_bytes":1}}'),
        ([TIME, TIME.time(), THREE_HOURS], '["2022-08-22T03:51:00+00:00","03:51:00","PT10800S"]'),
        ([decimal.Decimal("0.10"), fractions.Fraction(1, 3)], '["0.10","1/3"]'),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (pathlib.PurePosixPath("/a/b"), "/a/b"),
        (b"\x00\xff", '{"base64":"AP8=","size_bytes":2}'),
        ([bytearray(b"a")], '[{"base64":"YQ==","size_bytes":1}]'),
        (memoryview(b"b"), '{"base64":"Yg==","size_bytes":1}'),
        (collections.deque([1, 2]), "[1,2]"),
        (range(3), "[0,1,2]"),
        ({"a": 1}.keys(), '["a"]'),
        (collections.Counter("aab"), '{"a":2,"b":1}'),
        (types.MappingProxyType({"a": {1}}), '{"a":[1]}'),
        ([2**63, 2**64, -(2**70)], "[9223372036854775808,18446744073709551616,-1180591620717411303424]"),
        (10**MAX_DIGITS, f"<an integer of about {MAX_DIGITS} digits>"),
        ({"a\0b": "c\0d\ud800e\udfff"}, '{"a\ufffdb":"c\ufffdd\ufffde\ufffd"}'),
        ([2**70, "\\u0000"], '[1180591620717411303424,"\\\\u0000"]'),
        (["\\u0000"], '["\\\\u0000"]'),
        ("plain", "plain"),
        ("NUL \0 and \ud800.", "NUL \ufffd and \ufffd."),
        ("", ""),
        (iter([1, 2]), "<not JSON: builtins.list_iterator>"),
        ([AwkwardModel()], '["<not JSON: test_values.AwkwardModel>"]'),
        (int, "<not JSON: builtins.type>"),
        (ValueError("x"), "<not JSON: builtins.ValueError>"),
        (1 + 2j, "<not JSON: builtins.complex>"),
        ({"x": emptied()}, '{"x":"<not JSON: test_values.Emptied>"}'),
    ],
)
def test_each_kind_of_value_has_one_documented_form(value: object, text: str) -> None:
    kept = stored(value, limit=LIMIT)
    expected = text.replace("test_values", __name__)
    assert kept.text == expected
    assert kept == StoredValue(expected, kept.json, digest(expected, "result"), len(expected.encode()))
    if kept.json:
        json.loads(kept.text)


def test_text_is_text_and_everything_else_is_json() -> None:
    assert stored('{"a": 1}', limit=LIMIT).json is False
    assert stored({"a": 1}, limit=LIMIT).json is True
    assert stored(None, limit=LIMIT).json is True
    assert stored(object(), limit=LIMIT).json is False


def test_an_object_that_raises_at_every_touch_is_named_and_left_alone() -> None:
    kept = stored([Awkward(), Awkward()], limit=LIMIT)
    assert json.loads(kept.text) == [f"<not JSON: {__name__}.Awkward>"] * 2


def test_a_generator_is_not_consumed() -> None:
    asked = []

    def numbers() -> Any:
        asked.append(1)
        yield 1

    source = numbers()
    assert stored({"rows": source}, limit=LIMIT).text == '{"rows":"<not JSON: builtins.generator>"}'
    assert asked == []
    assert next(source) == 1


def test_an_int_keeps_its_digits_up_to_the_limit() -> None:
    longest = int("9" * MAX_DIGITS)
    assert stored([longest], limit=LIMIT).text == f"[{longest}]"
    assert stored([longest + 1], limit=LIMIT).text == f'["<an integer of about {MAX_DIGITS} digits>"]'


def test_depth_and_circles_end_in_words() -> None:
    deep: list[object] = []
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    assert stored(deep, limit=LIMIT).text == "[" * MAX_DEPTH + "]" * MAX_DEPTH
    marker = f'"<nested more than {MAX_DEPTH} deep>"'
    assert stored([deep], limit=LIMIT).text == "[" * MAX_DEPTH + marker + "]" * MAX_DEPTH
    circle: dict[str, object] = {}
    circle["a"] = circle
    assert marker in stored(circle, limit=LIMIT).text


def test_a_small_value_that_unfolds_into_billions_is_bounded() -> None:
    rows: list[object] = [1] * 1000
    for _ in range(20):
        rows = [rows] * 1000
    kept = stored(rows, limit=1000)
    assert kept.cut
    assert kept.whole is not None
    assert len(kept.whole) < MAX_WHOLE
    assert b"<more members not kept>" in kept.whole
    json.loads(kept.whole)


def test_an_object_of_too_many_members_says_that_there_were_more() -> None:
    kept = stored(dict.fromkeys(range(2_000_000)), limit=1000)
    assert kept.whole is not None
    assert json.loads(kept.whole)["..."] == "<more members not kept>"


def test_a_huge_text_inside_an_object_is_cut_and_says_so() -> None:
    kept = stored({"log": "x" * (MAX_WHOLE + 1000)}, limit=1000)
    assert kept.whole is not None
    assert json.loads(kept.whole)["log"].endswith(" more characters not kept>")
    assert len(kept.whole) < MAX_WHOLE + 100


def test_bytes_beyond_the_cap_say_how_many_there_were() -> None:
    size = MAX_WHOLE
    kept = stored(bytes(size), limit=200)
    assert kept.whole is not None
    form = json.loads(kept.whole)
    assert form["size_bytes"] == size
    assert form["kept_bytes"] < size
    assert len(kept.whole) <= MAX_WHOLE + 100


def test_text_beyond_the_cap_loses_its_middle_and_says_so() -> None:
    kept = stored("é" * MAX_WHOLE, limit=1000)
    assert kept.whole is not None
    assert len(kept.whole) <= MAX_WHOLE
    assert f"{2 * MAX_WHOLE} bytes were returned".encode() in kept.whole
    assert kept.size_bytes == len(kept.whole)
    assert kept.digest == digest(kept.whole, "result")


def test_a_long_text_is_cut_in_the_middle_and_kept_whole() -> None:
    text = "begin" + "x" * 10_000 + "end"
    kept = stored(text, limit=1000)
    assert kept.cut
    assert kept.whole == text.encode()
    assert kept.size_bytes == len(text)
    assert kept.digest == digest(text, "result")
    assert len(kept.text.encode()) == 1000
    assert kept.text.startswith("beginxxx")
    assert kept.text.endswith("xxxend")
    assert f"[... cut to 1000 of {len(text)} bytes; the whole has digest {kept.digest} ...]" in kept.text


def test_a_value_of_exactly_the_limit_is_not_cut() -> None:
    assert stored("x" * 1000, limit=1000) == StoredValue(
        "x" * 1000, False, digest("x" * 1000, "result"), 1000
    )
    assert stored("x" * 1001, limit=1000).cut


@given(st.text(min_size=60, max_size=400), st.integers(1, 300))
def test_no_cut_splits_a_code_point_or_exceeds_the_limit(text: str, limit: int) -> None:
    kept = stored(text, limit=limit)
    assert len(kept.text.encode()) <= limit
    assert kept.cut == (kept.whole is not None) == (kept.size_bytes > limit)
    if kept.cut and limit > 150:
        head, _, tail = kept.text.partition("\n[... cut to")
        whole = (kept.whole or b"").decode()
        assert whole.startswith(head)
        assert whole.endswith(tail.partition("...]\n")[2])


anything: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.binary())
    | st.text(st.characters())
    | st.builds(object),
    lambda members: (
        st.lists(members, max_size=4)
        | st.dictionaries(st.text(st.characters()) | st.integers() | st.none(), members, max_size=4)
        | st.tuples(members, members)
    ),
    max_leaves=15,
)


@given(anything, st.integers(1, 500))
def test_whatever_a_tool_returns_can_be_stored_read_back_and_stored_again(value: Any, limit: int) -> None:
    kept = stored(value, limit=limit)
    whole = kept.whole if kept.whole is not None else kept.text.encode()
    assert "\0" not in kept.text
    assert kept.digest == digest(whole, "result")
    assert kept.size_bytes == len(whole)
    assert len(kept.text.encode()) <= limit
    again = stored(json.loads(whole) if kept.json else whole.decode(), limit=limit)
    assert again == kept


def test_equal_objects_have_equal_digests_whatever_the_order_of_their_keys() -> None:
    assert stored({"a": 1, "b": 2}, limit=LIMIT) == stored({"b": 2, "a": 1}, limit=LIMIT)
    assert stored({"a": (1,), "b": 2}, limit=LIMIT) == stored({"b": 2, "a": (1,)}, limit=LIMIT)


def test_synthetic_data_is_marked_only_by_a_true_at_the_top() -> None:
    @dataclasses.dataclass
    class Metrics:
        synthetic: bool

    assert stored({"synthetic": True, "x": 1}, limit=LIMIT).synthetic
    assert stored({"synthetic": True, "x": "y" * 100_000}, limit=LIMIT).synthetic
    assert stored(Metrics(True), limit=LIMIT).synthetic
    for value in ({"synthetic": 1}, {"synthetic": "true"}, {"a": {"synthetic": True}}, '{"synthetic": true}'):
        assert not stored(value, limit=LIMIT).synthetic
    assert not stored(Metrics(False), limit=LIMIT).synthetic


def test_the_stored_value_is_not_the_tools_object() -> None:
    rows = [1, 2]
    kept = stored({"rows": rows}, limit=LIMIT)
    rows.append(3)
    assert kept.text == '{"rows":[1,2]}'


def test_a_subclass_cannot_change_what_is_stored() -> None:
    class Text(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "other"

        def encode(self, *args: Any) -> bytes:
            raise AssertionError("asked")

    class Rows(dict[str, int]):
        def items(self) -> Any:
            raise AssertionError("asked")

    assert stored(Text("text"), limit=LIMIT).text == "text"
    assert stored(Rows(a=1), limit=LIMIT).text == '{"a":1}'


def test_the_table_of_the_module_names_the_limits_it_has() -> None:
    assert values.__doc__ is not None
    assert f"<nested more than {MAX_DEPTH} deep>" in values.__doc__


def test_many_keys_of_one_form_are_numbered_without_searching_anew() -> None:
    names = {object(): n for n in range(20_000)}
    started = time.perf_counter()
    kept = json.loads(stored({**names, "<not JSON: builtins.object> (2)": -1}, limit=MAX_WHOLE).text)
    assert time.perf_counter() - started < 3  # by the square of their number it was half a minute
    assert kept["<not JSON: builtins.object>"] == 0
    assert kept["<not JSON: builtins.object> (3)"] == 2
    assert kept["<not JSON: builtins.object> (20000)"] == 19_999
    assert len(kept) == 20_001
