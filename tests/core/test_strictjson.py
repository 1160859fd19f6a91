"""What strict JSON refuses and accepts (conformance L08-L15), each refusal with its place."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.errors import JsonInvalid
from fencepost.core.strictjson import (
    EXACT,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_DIGITS,
    child,
    loads,
    loads_arguments,
    named,
)

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**99), 10**99)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda members: st.lists(members, max_size=4) | st.dictionaries(text, members, max_size=4),
    max_leaves=20,
)


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_every_value_python_can_write_is_read_back(value: Any, ascii_only: bool, indent: int | None) -> None:
    written = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert loads(written) == value
    assert loads(f"\n\t {written}\r\n") == value
    assert loads(written.encode()) == value


@given(st.text(alphabet='[]{}:,"\\ 0123456789.eE+-truefalsn\ud800\0ué'))
def test_whatever_it_is_given_it_reads_what_the_standard_parser_reads_or_refuses(soup: str) -> None:
    try:
        value = loads(soup)
    except JsonInvalid:
        return
    assert value == json.loads(soup)


@pytest.mark.parametrize(
    ("document", "says", "path"),
    [
        ('{"n": 1, "n": 1}', 'duplicate key "n"', "$.n"),
        ('{"n": 1, "\\u006e": 2}', 'duplicate key "n"', "$.n"),
        ('{"a": [0, {"b": {"x y": 1, "x y": 1}}]}', 'duplicate key "x y"', '$.a[1].b["x y"]'),
        ('{"a": NaN}', "NaN is not JSON", "$.a"),
        ("[Infinity]", "Infinity is not JSON", "$[0]"),
        ('{"a": {"b": -Infinity}}', "-Infinity is not JSON", "$.a.b"),
        ('{"a": 1e400}', "the number 1e400 is too large", "$.a"),
        ("-1e400", "the number -1e400 is too large", "$"),
        ('{"a": ' + "9" * 101 + "}", "a number of 101 digits", "$.a"),
        ('{"a": -' + "9" * 400 + "}", "a number of 400 digits", "$.a"),
        ('{"a": 0.' + "0" * 400 + "1}", "a number of 402 digits", "$.a"),
        ('{"a": 1.' + "0" * 400 + "}", "a number of 401 digits", "$.a"),
        ('{"a": ' + "1" * 90 + "." + "0" * 20 + "}", "a number of 110 digits", "$.a"),
        ('{"a": ["\\ud800"]}', "a lone surrogate (\\ud800) in the string", "$.a[0]"),
        ('{"a": "\\uDFFFx"}', "a lone surrogate (\\udfff) in the string", "$.a"),
        ('{"\\ud800": 1}', "a lone surrogate (\\ud800) in a key", '$["\\ud800"]'),
        ('{"a": "x\\u0000y"}', "NUL (\\u0000) in the string", "$.a"),
        ('{"a": {"\\u0000": 1}}', "NUL (\\u0000) in a key", '$.a["\\u0000"]'),
        ("{} {}", "more data after the JSON value, at character 2", "$"),
        ("{}x", "more data after the JSON value", "$"),
        ("{} \u00a0", "more data after the JSON value", "$"),
        ('{"a": 1', "not valid JSON", "$"),
        ("{'a': 1}", "not valid JSON", "$"),
        ('{"a": 01}', "not valid JSON", "$"),
        ('{"a": 1,}', "not valid JSON", "$"),
        ('"a\nb"', "not valid JSON: Invalid control character", "$"),
        ('"a\0b"', "not valid JSON: Invalid control character", "$"),
        ("", "not valid JSON", "$"),
        (" ", "not valid JSON", "$"),
        ("\ufeff{}", "byte order mark", "$"),
        (b"\xef\xbb\xbf{}", "byte order mark", "$"),
        ('"\ud800"', "a lone surrogate at character 1", "$"),
        (b'"\xff"', "not UTF-8: byte 1", "$"),
        ('"é"'.encode("utf-16"), "not UTF-8", "$"),
    ],
)
def test_refused_with_its_place(document: str | bytes, says: str, path: str) -> None:
    with pytest.raises(JsonInvalid) as refusal:
        loads(document)
    assert says in str(refusal.value)
    assert refusal.value.path == path
    assert path == "$" or path in str(refusal.value)
    assert len(str(refusal.value)) < 300
    str(refusal.value).encode()


@pytest.mark.parametrize("document", ["[1]", '"x"', "123", "null", "true", "1.5"])
def test_arguments_that_are_no_object_are_refused(document: str) -> None:
    with pytest.raises(JsonInvalid, match="expected a JSON object, found"):
        loads_arguments(document)


@pytest.mark.parametrize("document", ["", " ", "\n\t  \r\n", "{}", " { } "])
def test_no_arguments_at_all_are_an_empty_object(document: str) -> None:
    assert loads_arguments(document) == {}


@pytest.mark.parametrize(
    ("document", "value"),
    [
        ("1.0", 1),
        ("-3.0", -3),
        ("0.0", 0),
        ("-0.0", 0),
        ("1e3", 1000),
        ("9007199254740991.0", 2**53 - 1),
        ('{"a": [1.0]}', {"a": [1]}),
    ],
)
def test_an_integral_float_that_a_double_holds_exactly_is_an_integer(document: str, value: object) -> None:
    found = loads(document)
    assert found == value
    assert "." not in json.dumps(found)


@pytest.mark.parametrize("document", ["1.5", "9007199254740992.0", "1e300", "0.1"])
def test_other_floats_stay_floats(document: str) -> None:
    assert type(loads(document)) is float
    assert loads(document) == float(document)
    assert EXACT == 9007199254740992


def test_integers_keep_their_digits_up_to_the_limit() -> None:
    assert loads("9" * MAX_DIGITS) == int("9" * MAX_DIGITS)
    assert loads("[-" + "9" * MAX_DIGITS + ",1]") == [-int("9" * MAX_DIGITS), 1]


def test_depth_is_counted_outside_strings_and_the_last_permitted_level_passes() -> None:
    fits = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert isinstance(loads(fits), list)
    assert loads(json.dumps({"a": '"[{\\' * 500})) == {"a": '"[{\\' * 500}
    assert isinstance(loads("[" + ",".join(["[]"] * 500) + "]"), list)
    with pytest.raises(JsonInvalid, match=f"nested more than {MAX_DEPTH} deep, at character {MAX_DEPTH}"):
        loads("[" + fits + "]")
    with pytest.raises(JsonInvalid, match="nested more than 2 deep"):
        loads('{"a": [[]]}', max_depth=2)


def test_the_limit_on_size_is_in_bytes_and_the_last_permitted_byte_passes() -> None:
    assert loads('"' + "x" * (MAX_BYTES - 2) + '"')
    long_text, long_utf8 = '"' + "x" * (MAX_BYTES - 1) + '"', '"' + "é" * (MAX_BYTES // 2) + '"'
    for document in (long_text, long_utf8, " " * MAX_BYTES + "1"):
        with pytest.raises(JsonInvalid, match=f"more than the {MAX_BYTES} allowed"):
            loads(document)
        with pytest.raises(JsonInvalid, match=f"more than the {MAX_BYTES} allowed"):
            loads(document.encode())
    with pytest.raises(JsonInvalid, match="more than the 262144 allowed"):
        loads_arguments(" " * (MAX_BYTES + 1))
    assert loads("123", max_bytes=3) == 123
    with pytest.raises(JsonInvalid, match="more than the 2 allowed"):
        loads("123", max_bytes=2)


@pytest.mark.parametrize(
    "document",
    [
        "[" * 3_000 + "]" * 3_000,
        "[" * 20_000 + "]" * 20_000,
        '{"a":' * 20_000 + "1" + "}" * 20_000,
        "x" * 10_000_000,
        '{"a": "' + "x" * 10_000_000 + '"}',
        "[" * 10_000_000,
        '"' + '\\"' * 120_000,
        '{"a": ' + "9" * 200_000 + "}",
    ],
    ids=["3,000", "20,000", "objects", "10 MB", "10 MB string", "10 MB deep", "escapes", "digits"],
)
def test_what_would_hang_or_kill_a_parser_is_refused_at_once(document: str) -> None:
    started = time.perf_counter()
    with pytest.raises(JsonInvalid):
        loads(document)
    assert time.perf_counter() - started < 0.5  # L12: 50 ms; ten times that tells linear from hung


def test_kinds_have_the_names_that_json_gives_them() -> None:
    kinds: list[object] = [None, True, 1, 1.5, "x", [], (), {}, b""]
    words = [
        "null",
        "a boolean",
        "an integer",
        "a number",
        "a string",
        "an array",
        "an array",
        "an object",
        "a bytes",
    ]
    assert [named(kind) for kind in kinds] == words


def test_paths_are_bounded_and_safe_to_print() -> None:
    assert child("$", "window") == "$.window"
    assert child("$.a", 3) == "$.a[3]"
    assert child("$", "a.b") == '$["a.b"]'
    assert child("$", "") == '$[""]'
    assert child("$", "\x1b[2J\ud800") == '$["\\u001b[2J\\ud800"]'
    assert len(child("$", "k" * 10_000)) < 100


@pytest.mark.needs_data
def test_edge_cases_collected_by_others_are_answered_as_the_grammar_says(shared_data: Path) -> None:
    cases = [json.loads(line) for line in (shared_data / "json" / "parsing.jsonl").read_text().splitlines()]
    wrong: dict[str, str] = {}
    for case in cases:
        repeat = case.get("repeat")
        document = repeat["unit"].encode() * repeat["times"] if repeat else base64.b64decode(case["base64"])
        try:
            loads(document)
            answer = "accept"
        except JsonInvalid:
            answer = "reject"
        if case["expected"] not in (answer, "either"):
            wrong[case["name"]] = answer
    # What the grammar allows and rule 2 refuses.
    on_purpose = ("duplicated_key", "duplicated_key_and_value", "escaped_null_in_key")
    assert wrong == {f"y_object_{name}": "reject" for name in on_purpose}
    assert len(cases) > 200


@pytest.mark.needs_data
def test_values_that_parsers_turn_into_different_things_are_kept_or_refused(shared_data: Path) -> None:
    answers: dict[str, object] = {}
    for line in (shared_data / "json" / "transform.jsonl").read_text().splitlines():
        case = json.loads(line)
        try:
            answers[case["name"]] = loads(base64.b64decode(case["base64"]))
        except JsonInvalid:
            answers[case["name"]] = JsonInvalid
    assert answers["number_-9223372036854775809"] == [-9223372036854775809]
    assert answers["number_10000000000000000999"] == [10000000000000000999]
    assert answers["object_key_nfc_nfd"] == {"\u00e9": "NFC", "e\u0301": "NFD"}
    refused = {name for name, answer in answers.items() if answer is JsonInvalid}
    assert refused == {name for name in answers if "same_key" in name or "codepoint" in name}
