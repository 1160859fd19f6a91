"""The strict `add` of the examples: every malformed call that `tests/conformance` knows (07-18) runs nothing."""

from __future__ import annotations

import time

import pytest

from examples.add import CALLS, add, main
from fencepost import ArgumentsInvalid, CallContext

CONTEXT = CallContext("task", "tenant", "me", step=1, position=0, start=1, key="key", seconds=60.0)
DEEP = '{"a": 1, "b": ' + "[" * 3_000 + "]" * 3_000 + "}"
DEEPER = '{"a": ' * 20_000 + "1" + "}" * 20_000


@pytest.mark.parametrize(
    ("arguments", "canonical", "total"),
    [
        ('{"a": 2, "b": 3}', '{"a":2,"b":3}', 5),
        ('{"b":3,"a":2}', '{"a":2,"b":3}', 5),
        (' {\n"a" : 0 , "b" : 0 }\n', '{"a":0,"b":0}', 0),  # an explicit zero is not a missing value
        ('{"a": 1.0, "b": 1e1}', '{"a":1,"b":10}', 11),
        ('{"a": 100, "b": 100}', '{"a":100,"b":100}', 200),
        ('{"\\u0061": 1, "b": -0}', '{"a":1,"b":0}', 1),
    ],
)
async def test_well_formed_calls_run_with_one_canonical_object(
    arguments: str, canonical: str, total: int
) -> None:
    prepared = add.prepare(arguments)
    assert prepared.canonical == canonical
    assert await add.run(prepared, CONTEXT) == total
    assert add.prepare(canonical) == prepared


@pytest.mark.parametrize(
    ("row", "arguments", "place", "says"),
    [
        ("L07", '{"a": 1, "b": 2', "column", "not valid JSON"),
        ("L07", "{a: 1, b: 2}", "column", "not valid JSON"),
        ("L07", '{"a": 1, "b": 2} please', "character 16", "more data"),
        ("L08", "", "$.a", "a required field is missing"),
        ("L08", " \n\t", "$.a", "a required field is missing"),
        ("L09", "[1]", "add:", "expected a JSON object, found an array"),
        ("L09", '"x"', "add:", "found a string"),
        ("L09", "123", "add:", "found an integer"),
        ("L09", "null", "add:", "found null"),
        ("L09", "true", "add:", "found a boolean"),
        ("L10", '{"a": 1, "a": 1, "b": 2}', "$.a", "duplicate key"),
        ("L10", '{"a": 1, "\\u0061": 5, "b": 2}', "$.a", "duplicate key"),
        ("L10", '{"a": {"n": 1, "n": 2}, "b": 2}', "$.a.n", "duplicate key"),
        ("L11", '{"a": NaN, "b": 2}', "$.a", "NaN is not JSON"),
        ("L11", '{"a": 1, "b": Infinity}', "$.b", "Infinity is not JSON"),
        ("L11", '{"a": 1, "b": -Infinity}', "$.b", "-Infinity is not JSON"),
        ("L11", '{"a": 1e400, "b": 2}', "$.a", "too large"),
        ("L12", DEEP, "character", "nested more than 64 deep"),
        ("L12", DEEPER, "character", "nested more than 64 deep"),
        ("L13", '{"a": ' + "9" * 400 + ', "b": 2}', "$.a", "400 digits"),
        ("L14", '{"a": 1, "b": 2, "c": "' + "x" * 10_000_000 + '"}', "262144", "more than the"),
        ("L15", '{"a": "\\ud800", "b": 2}', "$.a", "lone surrogate"),
        ("L15", '{"a": "\\u0000", "b": 2}', "$.a", "NUL"),
        ("L15", '{"a": 1, "b": 2, "\\u0000": 3}', '$["\\u0000"]', "NUL"),
        ("L15", '{"a": "\ud800", "b": 2}', "character 7", "lone surrogate"),
        ("L16", '{"a": "1", "b": 2}', "$.a", 'found "1"; expected there: integer >= 0 and <= 100'),
        ("L16", '{"a": true, "b": 2}', "$.a", "found true"),
        ("L16", '{"a": 1, "b": 1.5}', "$.b", "found 1.5"),
        ("L16", '{"a": [1], "b": 2}', "$.a", "Expected `int`, got `array`"),
        ("L17", '{"a": 1, "b": 2, "c": 3}', "$.c", 'unknown field at $.c; the fields there are: "a", "b"'),
        ("L17", '{"a": 1, "b": 2, "__proto__": {}}', "$.__proto__", "unknown field"),
        ("L17", '{"a": 1, "b": 2, "": 3}', '$[""]', "unknown field"),
        ("L18", '{"a": 1}', "$.b", "a required field is missing"),
        ("L18", '{"a": 1, "b": null}', "$.b", "got `null`"),
        ("range", '{"a": 101, "b": 2}', "$.a", "found 101"),
        ("range", '{"a": -1, "b": 2}', "$.a", "found -1"),
        ("range", '{"a": 1, "b": ' + "9" * 90 + "}", "$.b", "found 999"),
    ],
)
def test_malformed_calls_are_refused_with_tool_place_and_shape(
    row: str, arguments: str, place: str, says: str
) -> None:
    started = time.perf_counter()
    with pytest.raises(ArgumentsInvalid) as refusal:
        add.prepare(arguments)
    text = str(refusal.value)
    assert text.startswith("add: ")
    assert place in text
    assert says in text
    assert '{"a": integer >= 0 and <= 100, "b": integer >= 0 and <= 100}' in text
    assert len(text.encode()) < 4096
    assert time.perf_counter() - started < 0.5, row


async def test_calling_the_tool_itself_is_validated_too() -> None:
    assert await add(a=1, b=2) == 3
    assert await add(1, 2) == 3
    for wrong in (
        {"a": "1", "b": 2},
        {"a": 1},
        {"a": 1, "b": 2, "c": 3},
        {"a": True, "b": 2},
        {"a": 1, "b": 101},
    ):
        with pytest.raises(ArgumentsInvalid, match="Nothing was run"):
            await add(**wrong)


async def test_the_example_shows_accepted_and_refused_calls(capsys: pytest.CaptureFixture[str]) -> None:
    await main()
    shown = capsys.readouterr().out
    assert shown.count("accepted ") == 2
    assert shown.count("refused ") == len(CALLS) - 2
