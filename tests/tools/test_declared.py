"""Tools declared by somebody else's JSON Schema: bounded, offline, strict (L19)."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from fencepost.core.canonical import digest
from fencepost.core.errors import ArgumentsInvalid, DefinitionInvalid
from fencepost.core.messages import Effect
from fencepost.ports import CallContext, Reconciled, Tool
from fencepost.tools.declared import MAX_SCHEMA_BYTES, MAX_SCHEMA_NODES, DeclaredTool

CONTEXT = CallContext("t1", "acme", "ann", step=1, position=0, start=1, key="k", seconds=60.0)
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "at": {"$ref": "#/$defs/place"},
    },
    "required": ["city"],
    "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]}},
}


async def echo(arguments: dict[str, Any], context: CallContext) -> Any:
    return [arguments, context.key]


def declared(schema: Any, name: str = "weather") -> DeclaredTool:
    return DeclaredTool(name, echo, schema=schema, description="The weather", effect="read")


async def test_a_declared_tool_runs_with_what_its_schema_allows() -> None:
    weather = declared(SCHEMA)
    assert isinstance(weather, Tool)
    assert not weather.threaded
    assert weather.definition.effect is Effect.READ
    assert json.loads(weather.definition.schema) == SCHEMA
    prepared = weather.prepare('{"days": 2.0, "city": "Oslo", "at": {"lat": 1, "extra": true}}')
    assert prepared.canonical == '{"at":{"extra":true,"lat":1},"city":"Oslo","days":2}'
    assert prepared.digest == digest(prepared.canonical)
    assert await weather.run(prepared, CONTEXT) == [prepared.values, "k"]
    assert weather.operation_key(prepared) is None
    assert await weather.reconcile(prepared, CONTEXT) == Reconciled("cannot_tell")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("{}", 'weather: "city" is a required property at $.'),
        ('{"city": "Bonn"}', 'at $.city, found "Bonn"; expected there: one of "Oslo", "Rome"'),
        ('{"city": "Oslo", "days": "2"}', 'at $.days, found "2"; expected there: integer >= 1 and <= 7'),
        ('{"city": "Oslo", "days": true}', "at $.days, found true"),
        ('{"city": "Oslo", "days": 1.5}', "at $.days, found 1.5"),
        ('{"city": "Oslo", "at": {}}', 'at $.at; expected there: {"lat": number}'),
        ('{"city": "Oslo", "x": 1}', 'unknown field at $.x; the fields there are: "at", "city", "days"'),
        ('{"city": "Oslo", "city": "Rome"}', 'duplicate key "city" at $.city'),
        ('{"city": "' + "x" * 100_000 + '"}', "at $.city, found "),
        ("[]", "expected a JSON object, found an array"),
    ],
)
def test_what_the_schema_does_not_allow_is_refused_with_place_and_shape(arguments: str, says: str) -> None:
    with pytest.raises(ArgumentsInvalid) as refusal:
        declared(SCHEMA).prepare(arguments)
    assert says in str(refusal.value)
    assert len(str(refusal.value).encode()) < 4096


def test_a_schema_that_speaks_of_other_properties_decides_about_them_itself() -> None:
    free = declared({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}})
    assert free.prepare('{"a": "x", "b": 1}').values == {"a": "x", "b": 1}
    with pytest.raises(ArgumentsInvalid, match=r"at \$\.b"):
        free.prepare('{"b": "x"}')
    composed = declared({"type": "object", "properties": {"a": {}}, "allOf": [{"required": ["b"]}]})
    assert composed.prepare('{"b": 1}').values == {"b": 1}
    assert declared({"type": "object"}).prepare('{"any": 1}').values == {"any": 1}
    with pytest.raises(ArgumentsInvalid, match="unknown field"):
        declared({"type": "object", "properties": {}}).prepare('{"any": 1}')


@pytest.fixture
def listener() -> Any:
    """A server that must never be asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield server
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("key", ["$ref", "$dynamicRef", "$recursiveRef"])
@pytest.mark.parametrize(
    "target",
    ["http://127.0.0.1:{port}/x.json", "file://{path}", "other.json", "//127.0.0.1:{port}/x", "urn:x"],
)
def test_a_reference_that_leaves_the_schema_is_refused_and_nothing_is_fetched(
    key: str, target: str, listener: socket.socket, tmp_path: Path
) -> None:
    named = target.format(port=listener.getsockname()[1], path=tmp_path / "x.json")
    for place in (
        {"properties": {"a": {key: named}}},
        {"$defs": {"b": {"items": [{key: named}]}}},
        {key: named},
    ):
        with pytest.raises(DefinitionInvalid, match="leaves the schema and is never fetched"):
            declared({"type": "object", **place})


def test_a_relative_reference_under_a_foreign_id_is_resolved_inside(listener: socket.socket) -> None:
    base = f"http://127.0.0.1:{listener.getsockname()[1]}/schema"
    weather = declared({**SCHEMA, "$id": base})
    with pytest.raises(ArgumentsInvalid, match=r"at \$\.at"):
        weather.prepare('{"city": "Oslo", "at": {}}')


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "array"}, r"""the root of its schema must be \{"type": "object"\}, found type 'array'"""),
        ({"properties": {}}, "found type None"),
        ("[]", "found an array"),
        ("true", "found a boolean"),
        ("{", "its schema is refused: not valid JSON"),
        ('{"type": "object", "type": "object"}', "duplicate key"),
        (b'{"type": "\xff"}', "not UTF-8"),
        (
            {"type": "object", "properties": {"a": {"type": "number", "minimum": float("inf")}}},
            "is not valid",
        ),
        ({"type": "object", "description": "x" * MAX_SCHEMA_BYTES}, "more than the 65536 allowed"),
        ('{"type": "object", "not": ' + '{"not": ' * 40 + "{}" + "}" * 41, "nested more than 32 deep"),
        ({"type": "object", "enum": list(range(MAX_SCHEMA_NODES))}, "more than 2000 nodes"),
        ({"type": "object", "$schema": "http://127.0.0.1:9/meta"}, "is not known; it is never fetched"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}, "its schema is not valid"),
        ({"type": "object", "properties": {"a": {"type": "int"}}}, "its schema is not valid"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, "its schema is not valid"),
        ({"type": "object", "x": object()}, "its schema is not JSON"),
    ],
)
def test_a_schema_that_cannot_be_trusted_is_refused_at_registration(schema: Any, says: str) -> None:
    with pytest.raises(DefinitionInvalid, match=says) as refusal:
        declared(schema)
    assert str(refusal.value).startswith("tool 'weather': ")
    assert len(str(refusal.value)) < 700


def test_without_the_extra_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(
        DefinitionInvalid, match=r"a JSON Schema needs jsonschema-rs; install fencepost\[schema\]"
    ):
        declared(SCHEMA)


def test_references_that_go_in_circles_end() -> None:
    circle = {"$ref": "#/$defs/a"}
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}
    found = declared({**tree, "$defs": {"node": tree, "a": circle}, "required": ["kids"]})
    assert found.prepare('{"kids": [{"kids": [{}]}]}').values == {"kids": [{"kids": [{}]}]}
    with pytest.raises(ArgumentsInvalid, match=r"at \$\.kids\[0\]\.kids"):
        found.prepare('{"kids": [{"kids": 1}]}')
    endless = declared({"type": "object", "properties": {"x": circle}, "$defs": {"a": circle}})
    assert endless.prepare('{"x": 1}').values == {"x": 1}


def test_a_schema_that_names_itself_everywhere_is_put_into_few_words() -> None:
    node = {"$ref": "#/$defs/node"}
    wide = {"type": "object", "properties": {f"p{n}": node for n in range(400)}}
    found = declared({**wide, "$defs": {"node": wide}})
    with pytest.raises(ArgumentsInvalid, match=r"at \$\.p0, found 1; expected there: ") as refusal:
        found.prepare('{"p0": 1}')
    assert len(str(refusal.value).encode()) < 4096
    both = {"anyOf": [{"$ref": "#/$defs/both"}] * 20, "type": "integer"}
    circle = declared({"type": "object", "properties": {"x": both}, "$defs": {"both": both}})
    with pytest.raises(ArgumentsInvalid, match=r"at \$\.x"):
        circle.prepare('{"x": "1"}')
    itself = {"$ref": "#/$defs/itself", "type": "integer"}
    circle = declared({"type": "object", "properties": {"x": itself}, "$defs": {"itself": itself}})
    with pytest.raises(ArgumentsInvalid, match=r"at \$\.x"):
        circle.prepare('{"x": "1"}')


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"const": 3}, "3"),
        ({"const": "x"}, '"x"'),
        ({"enum": list(range(60))}, "48, 49 and 10 more"),
        ({"enum": ["only"]}, '"only"'),
        ({"type": ["integer", "null"], "minimum": 1}, "integer >= 1 or null >= 1"),
        ({"oneOf": [{"type": "string"}, {"type": "string"}, {"type": "boolean"}]}, "string or boolean"),
        ({"properties": {"a": True}, "required": ["a"]}, '{"a": any JSON value}'),
        ({"minimum": 1}, "value >= 1"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "object with values: string"),
        ({"type": "object"}, "object"),
        ({"type": "array"}, "array of any JSON value"),
        ({"$ref": "#/properties/v"}, "any JSON value"),
    ],
)
def test_every_kind_of_schema_has_words(schema: Any, words: str) -> None:
    found = declared({"type": "object", "properties": {"v": {}, "w": schema}, "required": ["w"]})
    with pytest.raises(ArgumentsInvalid) as refusal:
        found.prepare("{}")
    assert '"v"?: any JSON value, "w": ' in str(refusal.value)
    assert words in str(refusal.value)


@pytest.mark.needs_data
def test_collected_schemas_are_answered_as_their_authors_say(shared_data: Path) -> None:
    wrong, asked = [], 0
    for file in sorted((shared_data / "json_schema" / "draft2020-12").glob("*.json")):
        for group in json.loads(file.read_text(encoding="utf-8")):
            try:
                found = declared(_under_value(group["schema"]))
            except DefinitionInvalid:
                continue  # remote references and odd dialects: refused above
            for case in group["tests"]:
                try:
                    found.prepare(json.dumps({"value": case["data"]}))
                    valid = True
                except ArgumentsInvalid as why:
                    if "NUL" in str(why) or "digits" in str(why) or "unpaired" in str(why):
                        continue  # stricter JSON than JSON Schema's
                    valid = False
                asked += 1
                if valid != case["valid"]:
                    wrong.append((file.name, group["description"], case["description"]))
    assert wrong == []
    assert asked > 500


def _under_value(schema: Any) -> dict[str, Any]:
    """The schema as that of one argument, where it names no place of its own."""
    if isinstance(schema, dict) and (
        "$ref" in json.dumps(schema) or "$id" in schema or "ynamic" in json.dumps(schema)
    ):
        return {"type": "array"}
    if isinstance(schema, dict):
        schema = {key: value for key, value in schema.items() if key != "$schema"}
    return {"type": "object", "properties": {"value": schema}}
