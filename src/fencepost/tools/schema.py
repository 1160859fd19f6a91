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
from fencepost.tools.annotations import is_model

REF = "#/$defs/"
# More allowed values than a model reads in an error text.
MAX_LISTED = 50
# Deeper, a shape is no longer something to read.
MAX_SHAPE_DEPTH = 5

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
    except (TypeError, ValueError, NotImplementedError) as why:
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
    if not is_model(kind):
        raise NotImplementedError
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


def shape(node: Any, definitions: Mapping[str, Any], depth: int = 0) -> str:
    """What a schema asks for, in a few words: `integer >= 0 and <= 100`, `{"a": integer, "b"?: string}`."""
    if not isinstance(node, dict) or not node:
        return "any JSON value"
    if depth > MAX_SHAPE_DEPTH:
        return "…"
    if (named := node.get("$ref")) is not None:
        return shape(definitions.get(str(named).removeprefix(REF)), definitions, depth + 1)
    if isinstance(values := node.get("enum"), list):
        return _listed(values)
    if "const" in node:
        return _value(node["const"])
    for word in ("anyOf", "oneOf"):
        if isinstance(branches := node.get(word), list):
            return " or ".join(dict.fromkeys(shape(branch, definitions, depth + 1) for branch in branches))
    return _typed(node, definitions, depth)


def _typed(node: dict[str, Any], definitions: Mapping[str, Any], depth: int) -> str:
    kind = node.get("type")
    if isinstance(kind, list):
        return " or ".join(_typed({**node, "type": each}, definitions, depth) for each in kind)
    if kind == "object" or (kind is None and "properties" in node):
        return _object(node, definitions, depth)
    bounds = [f"{word} {node[key]}" for key, word in _BOUND_WORDS.items() if key in node]
    if kind == "array":
        if isinstance(items := node.get("prefixItems"), list):
            return "[" + ", ".join(shape(item, definitions, depth + 1) for item in items) + "]"
        kind = f"array of {shape(node.get('items'), definitions, depth + 1)}"
    words = str(kind) if kind is not None else "value"
    return words if not bounds else f"{words} {' and '.join(bounds)}"


def _object(node: dict[str, Any], definitions: Mapping[str, Any], depth: int) -> str:
    properties = node.get("properties")
    if not isinstance(properties, dict):
        values = node.get("additionalProperties")
        return f"object with values: {shape(values, definitions, depth + 1)}" if values else "object"
    required = node.get("required", ())
    members = [
        f"{quoted(name)}{'' if name in required else '?'}: {shape(member, definitions, depth + 1)}"
        for name, member in properties.items()
    ]
    return "{" + ", ".join(members) + "}"


def _listed(values: Sequence[Any]) -> str:
    listed = ", ".join(_value(value) for value in values[:MAX_LISTED])
    more = f" and {len(values) - MAX_LISTED} more" if len(values) > MAX_LISTED else ""
    return f"one of {listed}{more}" if len(values) != 1 else listed


def _value(value: Any) -> str:
    return quoted(value) if isinstance(value, str) else msgspec.json.encode(value).decode()[:100]


def at(node: Any, path: Sequence[str | int], definitions: Mapping[str, Any]) -> Any:
    """The part of a schema that a place in a document has to fit; None when the schema does not say."""
    for depth in range(len(path) + 1):
        while isinstance(node, dict) and (named := node.get("$ref")) is not None:
            node = definitions.get(str(named).removeprefix(REF))
        if not isinstance(node, dict) or depth == len(path):
            return node
        for branch in node.get("anyOf", ()):
            if (found := at(branch, path[depth:], definitions)) is not None:
                return found
        node = _member(node, path[depth])
    return node


def _member(node: dict[str, Any], key: str | int) -> Any:
    if isinstance(key, str):
        properties = node.get("properties", {})
        return properties[key] if key in properties else node.get("additionalProperties") or None
    first = node.get("prefixItems", ())
    return first[key] if key < len(first) else node.get("items") or None
