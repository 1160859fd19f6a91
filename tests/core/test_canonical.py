"""Canonical JSON is RFC 8785 with whole integers: by hand, and against an independent encoder."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.canonical import MAX_NESTING, canonical, digest, number

SAFE = 2**53 - 1
text = st.text(st.characters(exclude_categories=["Cs"]))
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-SAFE, SAFE)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda members: st.lists(members) | st.dictionaries(text, members),
)


@given(json_values)
def test_every_json_value_is_written_as_an_independent_encoder_of_rfc_8785_writes_it(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value).decode()


@given(st.dictionaries(st.text(max_size=4), st.text() | st.integers(-SAFE, SAFE) | st.booleans() | st.none()))
def test_the_short_way_agrees_with_it_also_on_control_characters_and_any_key(value: dict[str, Any]) -> None:
    try:
        expected = rfc8785.dumps(value).decode()
    except (UnicodeEncodeError, rfc8785.CanonicalizationError):
        with pytest.raises(ValueError, match="surrogates"):
            canonical(value)
        return
    assert canonical(value) == expected


@given(st.integers(0, 2**64 - 1))
def test_every_double_is_written_as_es6_writes_it(bits: int) -> None:
    value = struct.unpack(">d", bits.to_bytes(8))[0]
    if value - value != 0:
        with pytest.raises(ValueError, match="is not a JSON number"):
            number(value)
        return
    assert number(value) == rfc8785.dumps(value).decode()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": 1, "a": 2}, '{"a":2,"b":1}'),
        ({"\U0001f600": 1, "\ufb33": 2, "z": 3}, '{"z":3,"\U0001f600":1,"\ufb33":2}'),
        (['\u20ac$\x0f\nA\'B"\\"/', "\x7f"], '["€$\\u000f\\nA\'B\\"\\\\\\"/","\x7f"]'),
        ([333333333.33333329, 1e30, 4.50, 2e-3, 1e-27], "[333333333.3333333,1e+30,4.5,0.002,1e-27]"),
        ([1e21, 1e20, 123456789012345680000.0], "[1e+21,100000000000000000000,123456789012345680000]"),
        ([1e-6, 1e-7, -0.0, -1.5, 0.1 + 0.2], "[0.000001,1e-7,0,-1.5,0.30000000000000004]"),
        ([5e-324, 1.7976931348623157e308], "[5e-324,1.7976931348623157e+308]"),
        ((None, True, False, 1.0, ""), '[null,true,false,1,""]'),
        ({}, "{}"),
        ([], "[]"),
        ("x", '"x"'),
    ],
)
def test_written_by_hand(value: object, expected: str) -> None:
    assert canonical(value) == expected


@pytest.mark.parametrize("value", [2**53, -(2**53), 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**99 + 7])
def test_an_integer_beyond_a_double_keeps_all_its_digits(value: int) -> None:
    assert canonical({"id": value, "x": 0.5}) == f'{{"id":{value},"x":0.5}}'
    assert canonical({"id": value}) == f'{{"id":{value}}}'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_a_number_has_no_text(value: float) -> None:
    with pytest.raises(ValueError, match="is not a JSON number"):
        canonical({"x": [value]})


@pytest.mark.parametrize("value", [{"x": b""}, object(), {1, 2}, {1: 2}, {"a": {None: 1}}, {b"": 1}])
def test_what_is_not_json_is_not_guessed(value: object) -> None:
    with pytest.raises(TypeError):
        canonical(value)


def test_a_lone_surrogate_is_found_before_the_digest() -> None:
    for value in ({"x": "\ud800"}, {"x": "\ud800", "y": 0.5}, {"\udfff": 0.5}):
        with pytest.raises(ValueError, match="surrogates not allowed"):
            canonical(value)


def test_nesting_ends_in_an_error_and_not_in_the_interpreter() -> None:
    deep: list[object] = []
    for _ in range(MAX_NESTING):
        deep = [deep]
    assert canonical(deep) == "[" * (MAX_NESTING + 1) + "]" * (MAX_NESTING + 1)
    deep.append(deep)
    with pytest.raises(ValueError, match="nested more than"):
        canonical(deep)
    circle: dict[str, object] = {}
    circle["a"] = circle
    with pytest.raises(ValueError, match="nested more than"):
        canonical(circle)


def test_a_digest_is_bound_to_its_domain() -> None:
    assert digest("{}") == hashlib.sha256(b"fencepost/arguments/v1\0{}").hexdigest()
    assert digest("{}", "result") == hashlib.sha256(b"fencepost/result/v1\0{}").hexdigest()
    assert (
        digest("é")
        == digest("é".encode())
        == hashlib.sha256("fencepost/arguments/v1\0é".encode()).hexdigest()
    )
    assert digest("{}") != digest("{}", "result") != digest("{} ", "result")


@given(json_values)
def test_order_of_keys_does_not_matter(value: Any) -> None:
    def reversed_(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: reversed_(node[key]) for key in reversed(node)}
        return [reversed_(member) for member in node] if isinstance(node, list) else node

    assert canonical(reversed_(value)) == canonical(value)
