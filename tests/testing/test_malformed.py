"""Arguments made from a schema: one set that fits, and texts that do not, judged by a validator that is not ours."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from fencepost.core.errors import JsonInvalid
from fencepost.core.strictjson import loads_arguments
from fencepost.testing.conformance.malformed import CASES_MOST, UNKNOWN, example, malformed

POINT = {
    "type": "object",
    "properties": {"x": {"type": "number", "exclusiveMinimum": 0}, "y": {"type": "number", "maximum": 3}},
    "required": ["x", "y"],
    "additionalProperties": False,
}


def closed(
    properties: dict[str, Any], *, required: tuple[str, ...] | None = None, defs: Any = None
) -> dict[str, Any]:
    """A schema as tools have them."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties if required is None else required),
        "additionalProperties": False,
        **({} if defs is None else {"$defs": defs}),
    }


SCHEMAS = {
    "nothing": closed({}),
    "scalars": closed(
        {"count": {"type": "integer", "minimum": 2, "maximum": 9}, "name": {"type": "string", "minLength": 3},
         "sure": {"type": "boolean"}, "share": {"type": "number", "exclusiveMaximum": 1}}
    ),
    "choices": closed({"kind": {"enum": ["a", "b"]}, "version": {"const": 2}, "none": {"type": "null"}}),
    "optional": closed({"depth": {"type": "integer", "default": 3}}, required=()),
    "either": closed({"at": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "to": {"type": ["integer", "null"]}}),
    "lists": closed({"tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 2},
                     "any": {"type": "array"}, "few": {"type": "array", "items": {}, "maxItems": 2}}),
    "nested": closed({"point": {"$ref": "#/$defs/Point"}, "points": {"type": "array", "items": POINT}},
                     defs={"Point": POINT}),
    "formats": closed({"at": {"type": "string", "format": "date-time"}, "who": {"type": "string", "format": "uuid"},
                       "step": {"type": "integer", "multipleOf": 5}}),
    "unclear": closed({"all": {"allOf": [{"type": "string"}], "default": "x"}, "free": {"default": 1},
                       "maybe": {"oneOf": [{"not": {"type": "null"}}, {"type": "null"}], "default": 2}}),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_example_fits_the_schema_and_no_malformed_text_does(name: str) -> None:
    schema = SCHEMAS[name]
    validator = jsonschema_rs.validator_for(schema)
    fitting = example(schema)
    assert fitting is not None
    assert validator.is_valid(fitting)
    for case in malformed(schema, fitting):
        try:
            read = loads_arguments(case.text)
        except JsonInvalid:
            continue
        assert not validator.is_valid(read), case


def whats(schema: dict[str, Any]) -> set[str]:
    """What is wrong in the cases of the schema."""
    return {case.what for case in malformed(schema, example(schema))}


def test_every_member_is_spoilt_in_every_way_its_schema_forbids() -> None:
    assert whats(SCHEMAS["scalars"]) >= {
        'count = "1"', "count = true", "count = 1.5", "count = null", "count = []", "count = {}", "count = 1",
        "count = 10", "count twice", "count = NaN", "no count", "name = 1", "name of 2 characters", "sure = 1",
        'sure = "true"', 'share = "1"', "share = true", "share = 1", "an unknown argument", "null", "two objects",
    }  # fmt: skip
    assert whats(SCHEMAS["either"]) >= {"at = 1", "to = 1.5", "to = true"}
    assert not whats(SCHEMAS["either"]) & {"at = null", "to = null"}


def test_places_below_the_first_level_are_spoilt_too() -> None:
    assert whats(SCHEMAS["nested"]) >= {
        'point.x = "1"', f"the unknown point.{UNKNOWN}", "no point.y", "point.x = 0", "points[0].y = 4",
    }  # fmt: skip
    assert whats(SCHEMAS["lists"]) >= {"tags[0] = 1", "tags[0] of 5 characters", "tags with 1 items"}


def test_a_place_the_schema_is_not_clear_about_is_left_alone() -> None:
    assert not {what for what in whats(SCHEMAS["unclear"]) if " = " in what and "NaN" not in what}


def test_an_open_schema_may_take_unknown_arguments() -> None:
    scalars = SCHEMAS["scalars"]
    assert "an unknown argument" not in whats({**scalars, "additionalProperties": True})
    assert "an unknown argument" not in whats({**scalars, "patternProperties": {"^x": {}}})


def test_without_an_example_only_texts_are_tried() -> None:
    schema = closed({"code": {"type": "string", "pattern": "^Q[0-9]$"}})
    assert example(schema) is None
    assert {"null", "a list", "an unknown argument"} <= {case.what for case in malformed(schema, None)}
    assert not any("code" in case.what for case in malformed(schema, None))


@pytest.mark.parametrize(
    "member",
    [{}, {"$ref": "#/$defs/Missing"}, {"type": "array", "prefixItems": [{}], "minItems": 1}, {"anyOf": []}],
)
def test_what_cannot_be_guessed_gives_no_example(member: dict[str, Any]) -> None:
    assert example(closed({"it": member})) is None


def test_a_schema_that_names_itself_comes_to_an_end() -> None:
    tree: dict[str, Any] = closed({"next": {"$ref": "#/$defs/Tree"}}, required=("next",))
    assert example({**tree, "$defs": {"Tree": tree}}) is None
    wide = closed({f"field{number}": {"type": "integer"} for number in range(200)})
    assert len(malformed(wide, example(wide))) <= CASES_MOST + 400


def test_the_same_schema_gives_the_same_cases() -> None:
    schema = SCHEMAS["nested"]
    again = json.loads(json.dumps(schema))
    assert malformed(schema, example(schema)) == malformed(again, example(again))
