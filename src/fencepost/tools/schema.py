"""JSON Schema of a tool's arguments, and the same in a few words for an error text.

Rule 1: the root is inlined (no `$ref` at the root: some providers refuse it), every object with named members
is closed, and every definition a pydantic model brings along moves up to the root, where its `$ref` points.
Rule 2: the words of an error are made from the schema that the model was given, so that they never disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fencepost.core.errors import DefinitionInvalid
from fencepost.core.strictjson import quoted

REF = "#/$defs/"
# More allowed values than a model reads in an error text.
MAX_LISTED = 50
# Deeper, a shape is no longer something to read.
MAX_SHAPE_DEPTH = 5
MAX_SHAPE_PARTS = 300
# Definitions and unions on the way to one place; foreign schemas may go in circles.
MAX_HOPS = 4

_BOUND_WORDS = {
    "minimum": ">=",
    "exclusiveMinimum": ">",
    "maximum": "<=",
    "exclusiveMaximum": "<",
    "multipleOf": "multiple of",
    "minLength": "length >=",
    "maxLength": "length <=",
    "minItems": "items >=",
    "maxItems": "items <=",
    "pattern": "matching",
    "format": "format",
}


def schema_of(arguments: type, descriptions: Mapping[str, str], where: str) -> dict[str, Any]:
    """The closed JSON Schema of a Struct of arguments, described argument by argument."""
    try:
        roots, definitions = msgspec.json.schema_components(
            (arguments,), schema_hook=_model_schema, ref_template=REF + "{name}"
        )
    except (TypeError, ValueError, RuntimeError) as why:  # a model may raise its own kind of RuntimeError
        raise DefinitionInvalid(f"{where}: no JSON Schema can be made of it ({why})") from None
    found: dict[str, Any] = dict(definitions)
    root = found.pop(roots[0]["$ref"].removeprefix(REF))
    root = _closed(root, found, where)
    for name in list(found):
        found[name] = _closed(found[name], found, where)
    root.pop("title", None)
    for name, text in descriptions.items():
        root["properties"][name].setdefault("description", text)
    return root if not found else {**root, "$defs": found}


def _model_schema(kind: type) -> dict[str, Any]:
    schema: dict[str, Any] = kind.model_json_schema(ref_template=REF + "{model}")  # type: ignore[attr-defined]
    return schema


def _closed(node: Any, definitions: dict[str, Any], where: str) -> Any:
    """The schema with its objects closed and its own definitions moved to the root's."""
    if isinstance(node, list):
        return [_closed(item, definitions, where) for item in node]
    if not isinstance(node, dict):
        return node
    found: dict[str, Any] = {}
    for key, item in node.items():
        if key == "$defs":
            for name, definition in item.items():
                moved = _closed(definition, definitions, where)
                if definitions.setdefault(name, moved) != moved:
                    raise DefinitionInvalid(f"{where}: two different types are named {name}; rename one")
        elif key == "properties":
            found[key] = {name: _closed(member, definitions, where) for name, member in item.items()}
        else:
            found[key] = item if key in ("default", "enum", "const") else _closed(item, definitions, where)
    if "properties" in found:
        found["additionalProperties"] = False
    return found


def shape(node: Any, definitions: Mapping[str, Any]) -> str:
    """What a schema asks for, in a few words: `integer >= 0 and <= 100`, `{"a": integer, "b"?: string}`."""
    return _Words(definitions).of(node, 0)


class _Words:
    """A schema put into words, so many parts of it: one that names itself everywhere would have no end."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._left = MAX_SHAPE_PARTS

    def of(self, node: Any, depth: int) -> str:
        if not isinstance(node, dict) or not node:
            return "any JSON value"
        self._left -= 1
        if depth > MAX_SHAPE_DEPTH or self._left < 0:
            return "…"
        if (named := node.get("$ref")) is not None:
            return self.of(_definition(named, self._definitions), depth + 1)
        if isinstance(values := node.get("enum"), list):
            return _listed(values)
        if "const" in node:
            return _value(node["const"])
        for word in ("anyOf", "oneOf"):
            if isinstance(branches := node.get(word), list):
                return " or ".join(dict.fromkeys(self.of(branch, depth + 1) for branch in branches))
        return self._typed(node, depth)

    def _typed(self, node: dict[str, Any], depth: int) -> str:
        kind = node.get("type")
        if isinstance(kind, list):
            return " or ".join(self._typed({**node, "type": each}, depth) for each in kind)
        if kind == "object" or (kind is None and "properties" in node):
            return self._object(node, depth)
        bounds = [f"{word} {node[key]}" for key, word in _BOUND_WORDS.items() if key in node]
        if kind == "array":
            if isinstance(items := node.get("prefixItems"), list):
                return "[" + ", ".join(self.of(item, depth + 1) for item in items) + "]"
            kind = f"array of {self.of(node.get('items'), depth + 1)}"
        words = str(kind) if kind is not None else "value"
        return words if not bounds else f"{words} {' and '.join(bounds)}"

    def _object(self, node: dict[str, Any], depth: int) -> str:
        properties = node.get("properties")
        if not isinstance(properties, dict):
            values = node.get("additionalProperties")
            return f"object with values: {self.of(values, depth + 1)}" if values else "object"
        required = node.get("required", ())
        members = []
        for name, member in properties.items():
            if self._left <= 0:
                members.append("…")
                break
            optional = "" if name in required else "?"
            members.append(f"{quoted(name)}{optional}: {self.of(member, depth + 1)}")
        return "{" + ", ".join(members) + "}"


def _definition(named: object, definitions: Mapping[str, Any]) -> Any:
    return definitions.get(str(named).removeprefix(REF))


def _listed(values: Sequence[Any]) -> str:
    listed = ", ".join(_value(value) for value in values[:MAX_LISTED])
    more = f" and {len(values) - MAX_LISTED} more" if len(values) > MAX_LISTED else ""
    return f"one of {listed}{more}" if len(values) != 1 else listed


def _value(value: Any) -> str:
    return quoted(value) if isinstance(value, str) else msgspec.json.encode(value).decode()[:100]


def place_in(schema: Any, path: Sequence[str | int], definitions: Mapping[str, Any], hops: int = 0) -> Any:
    """The part of a schema that a place in a document has to fit; None when the schema does not say."""
    if not isinstance(schema, dict) or hops > MAX_HOPS:
        return None
    if (named := schema.get("$ref")) is not None:
        return place_in(_definition(named, definitions), path, definitions, hops + 1)
    if not path:
        return schema
    if "anyOf" not in schema:
        return place_in(_member(schema, path[0]), path[1:], definitions, hops)
    found = (place_in(branch, path, definitions, hops + 1) for branch in schema["anyOf"][:MAX_LISTED])
    return next((place for place in found if place is not None), None)


def _member(node: dict[str, Any], key: str | int) -> Any:
    if isinstance(key, str):
        properties = node.get("properties", {})
        return properties[key] if key in properties else node.get("additionalProperties")
    first = node.get("prefixItems", ())
    return first[key] if key < len(first) else node.get("items")
