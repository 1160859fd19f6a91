"""The fast way through argument text agrees with the strict one on every text, refusals included."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.arguments import read_arguments
from fencepost.core.canonical import canonical, digest
from fencepost.core.errors import JsonInvalid
from fencepost.core.strictjson import loads_arguments

plain = st.text(alphabet='ab:,{}[]"\\ é\x7f', max_size=6)
members: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain, inner, max_size=3),
    max_leaves=8,
)


def strictly(text: str) -> Any:
    """What the strict reader makes of a text, or its refusal in words."""
    try:
        value = loads_arguments(text)
    except JsonInvalid as why:
        return str(why)
    return value, canonical(value), digest(canonical(value))


def read(text: str) -> Any:
    try:
        return read_arguments(text)
    except JsonInvalid as why:
        return str(why)


@given(st.lists(st.tuples(plain, members), max_size=4), st.booleans())
def test_objects_with_and_without_repeated_keys_are_read_alike(
    pairs: list[tuple[str, Any]], ascii_only: bool
) -> None:
    written = [
        f"{json.dumps(k, ensure_ascii=ascii_only)}: {json.dumps(v, ensure_ascii=ascii_only)}"
        for k, v in pairs
    ]
    text = "{" + ", ".join(written) + "}"
    assert read(text) == strictly(text)


@given(st.text(alphabet='{}[]:,"0123456789.eE+-truefalsn \\u\ud800\0', max_size=30))
def test_any_text_is_read_or_refused_alike(text: str) -> None:
    assert read(text) == strictly(text)
    assert read("{" + text + "}") == strictly("{" + text + "}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        '{"a":"x:y","a":"z"}',
        '{"a":"z","a":"x:y"}',
        '{"a":{"b":1,"b":1}}',
        '{"a":[{"b":1},{"b":1}]}',
        '{"\\u0061":1,"a":2}',
        '{"a":1.0}',
        '{"a":1e2}',
        '{"a":-0}',
        '{"a":NaN}',
        '{"a":123456789012345678901234567890}',
        '{"a":' + "9" * 101 + "}",
        '{"a":"' + "9" * 101 + '"}',
        '{"a":' + "[" * 63 + "]" * 63 + "}",
        '{"a":' + "[" * 64 + "]" * 64 + "}",
        '{"a":"' + "x" * 3000 + '"}',
        '{"a":"\x01"}',
        '{"a":"\x7f/"}',
        "[]",
        "{} x",
        '{"a":1}\0',
    ],
)
def test_the_odd_ones_are_read_or_refused_alike(text: str) -> None:
    assert read(text) == strictly(text)
