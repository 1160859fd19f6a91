"""Arguments that break a schema, and one set that fits it, both made from the schema itself.

Rule 1: a case is only made where the schema is clear: what a union or an unknown keyword might allow is left out,
so that a tool is never blamed for taking what its schema allows.
Rule 2: the cases are always the same for the same schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

# Enough for every member of a large tool; a schema can have more places than anybody waits for.
CASES_MOST = 500
# Schemas may name themselves.
DEPTH_MOST = 6
# A bound beyond this would make a test of memory out of a test of arguments. Characters or items.
LENGTH_MOST = 10_000

# Texts that are not one JSON object, or that two parsers read differently (contract 4.2). The empty text is none of
# them: providers send it where a call has no arguments.
TEXTS = (
    ("null", "null"),
    ("a list", "[]"),
    ("a text in quotes", '"{}"'),
    ("a number", "1"),
    ("an object that is cut", "{"),
    ("two objects", "{}{}"),
    ("words after the object", "{} ok"),
    ("single quotes", "{'a': 1}"),
    ("a trailing comma", '{"a": 1,}'),
    ("a comment", "{/* none */}"),
)
UNKNOWN = "no_such_argument"
# One value of each kind of JSON, and those that a careless reader turns into another kind.
KINDS: tuple[tuple[str, Any], ...] = (
    ("null", None),
    ("boolean", True),
    ("integer", 1),
    ("number", 1.5),
    ("string", "1"),
    ("string", "true"),
    ("array", []),
    ("object", {}),
)
FORMATS = {
    "date-time": "2027-01-15T08:00:00Z", "date": "2027-01-15", "time": "08:00:00Z", "duration": "PT1S",
    "uuid": "00000000-0000-4000-8000-000000000000", "email": "a@example.org", "uri": "https://example.org/",
}  # fmt: skip
_NONE: Any = object()


class Malformed(Struct, frozen=True):
    """One text of arguments that a tool must refuse, and what is wrong with it."""

    what: str
    text: str


def example(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """A small object that should fit the schema, None where none can be made of it (a pattern, say)."""
    found = _example(schema, schema, 0)
    return found if isinstance(found, dict) else None


def malformed(schema: Mapping[str, Any], valid: Mapping[str, Any] | None) -> tuple[Malformed, ...]:
    """Texts that break the schema: each differs from `valid`, which fits it, in one thing."""
    cases = [Malformed(*pair) for pair in TEXTS]
    if schema.get("additionalProperties", False) is False and not _is_open(schema):
        cases.append(Malformed("an unknown argument", json.dumps({**(valid or {}), UNKNOWN: 1})))
    if valid is None:
        return tuple(cases)
    for name, value in valid.items():
        member = f"{json.dumps(name)}: {json.dumps(value)}"
        cases.append(Malformed(f"{name} twice", f"{{{_others(valid, name)}{member}, {member}}}"))
        cases.append(Malformed(f"{name} = NaN", f"{{{_others(valid, name)}{json.dumps(name)}: NaN}}"))
    for what, broken in _broken(schema, valid, schema, "", 0):
        cases.append(Malformed(what, json.dumps(broken)))
        if len(cases) >= CASES_MOST:
            break
    return tuple(cases)


def _others(valid: Mapping[str, Any], name: str) -> str:
    return "".join(f"{json.dumps(key)}: {json.dumps(value)}, " for key, value in valid.items() if key != name)


def _is_open(node: Mapping[str, Any]) -> bool:
    words = ("allOf", "anyOf", "oneOf", "if", "$ref", "patternProperties", "unevaluatedProperties")
    return any(word in node for word in words)


# --- what breaks a place -----------------------------------------------------------------------------------


def _broken(
    node: Any, valid: Any, root: Mapping[str, Any], place: str, depth: int
) -> Iterator[tuple[str, Any]]:
    """What is wrong, and the value that is wrong so, for one place of the document and all below it."""
    node = _resolved(node, root)
    if depth > DEPTH_MOST or not isinstance(node, Mapping):
        return
    if depth > 0:
        allowed = _kinds(node, root, 0)
        if allowed is not None:
            for kind, value in KINDS:
                if kind not in allowed and not (kind == "integer" and "number" in allowed):
                    yield f"{place} = {json.dumps(value)}", value
        yield from _beyond(node, valid, place)
    if isinstance(valid, dict) and isinstance(node.get("properties"), Mapping):
        yield from _broken_members(node, valid, root, place, depth)
    if isinstance(valid, list) and valid and isinstance(node.get("items"), Mapping):
        for what, value in _broken(node["items"], valid[0], root, f"{place}[0]", depth + 1):
            yield what, [value, *valid[1:]]


def _broken_members(
    node: Mapping[str, Any], valid: dict[str, Any], root: Mapping[str, Any], place: str, depth: int
) -> Iterator[tuple[str, Any]]:
    dot = f"{place}." if place else ""
    if depth > 0 and node.get("additionalProperties") is False:
        yield f"the unknown {dot}{UNKNOWN}", {**valid, UNKNOWN: 1}
    for name in node.get("required", ()):
        if name in valid:
            yield f"no {dot}{name}", {key: value for key, value in valid.items() if key != name}
    for name, member in node["properties"].items():
        for what, value in _broken(member, valid.get(name), root, f"{dot}{name}", depth + 1):
            yield what, {**valid, name: value}


def _beyond(node: Mapping[str, Any], valid: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Values of the right kind on the wrong side of a bound."""
    if isinstance(choices := node.get("enum"), list):
        if (other := "no such choice") not in choices:
            yield f"{place} = {json.dumps(other)}", other
        return
    least, most = node.get("minimum"), node.get("maximum")
    above, below = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    numbers = (_plus(least, -1), _plus(most, 1), above, below)
    for number in numbers:
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            yield f"{place} = {number}", number
    shortest, longest = node.get("minLength", 0), node.get("maxLength", LENGTH_MOST)
    if node.get("type") == "string":
        if 0 < shortest <= LENGTH_MOST:
            yield f"{place} of {shortest - 1} characters", "x" * (shortest - 1)
        if longest < LENGTH_MOST:
            yield f"{place} of {longest + 1} characters", "x" * (longest + 1)
    fewest, largest = node.get("minItems", 0), node.get("maxItems", LENGTH_MOST)
    if node.get("type") == "array" and isinstance(valid, list):
        if fewest > 0:
            yield f"{place} with {fewest - 1} items", valid[: fewest - 1]
        if largest < LENGTH_MOST and valid:
            yield f"{place} with {largest + 1} items", (valid * (largest + 1))[: largest + 1]


def _plus(bound: Any, more: int) -> Any:
    return None if bound is None or isinstance(bound, bool) else bound + more


def _kinds(node: Any, root: Mapping[str, Any], hops: int) -> frozenset[str] | None:
    """The kinds of JSON a place allows; None when the schema does not say clearly."""
    node = _resolved(node, root)
    if not isinstance(node, Mapping) or hops > DEPTH_MOST:
        return None
    if any(word in node for word in ("allOf", "if", "not")):
        return None
    if isinstance(values := node.get("enum", [node["const"]] if "const" in node else None), list):
        return frozenset(_kind_of(value) for value in values)
    for word in ("anyOf", "oneOf"):
        if isinstance(branches := node.get(word), list):
            found = [_kinds(branch, root, hops + 1) for branch in branches]
            return None if None in found else frozenset().union(*(each for each in found if each))
    kind = node.get("type")
    if isinstance(kind, str):
        return frozenset((kind,))
    return frozenset(kind) if isinstance(kind, list) else None


def _kind_of(value: Any) -> str:
    for kind, types in (("null", type(None)), ("boolean", bool), ("integer", int), ("number", float),
                        ("string", str), ("array", list)):  # fmt: skip
        if isinstance(value, types):
            return kind
    return "object"


def _resolved(node: Any, root: Mapping[str, Any]) -> Any:
    for _ in range(DEPTH_MOST):
        if not isinstance(node, Mapping) or "$ref" not in node:
            return node
        place: Any = root
        for part in str(node["$ref"]).removeprefix("#").strip("/").split("/"):
            place = place.get(part) if isinstance(place, Mapping) else None
        node = place
    return None


# --- what fits ---------------------------------------------------------------------------------------------


def _example(node: Any, root: Mapping[str, Any], depth: int) -> Any:
    node = _resolved(node, root)
    if not isinstance(node, Mapping) or depth > DEPTH_MOST:
        return _NONE
    for word in ("const", "default"):
        if word in node:
            return node[word]
    for word in ("examples", "enum"):
        if isinstance(values := node.get(word), list) and values:
            return values[0]
    for word in ("anyOf", "oneOf"):
        if isinstance(branches := node.get(word), list):
            found = (_example(branch, root, depth + 1) for branch in branches)
            return next((each for each in found if each is not _NONE), _NONE)
    kind = node.get("type", "object" if "properties" in node else None)
    return _typed_example(kind[0] if isinstance(kind, list) and kind else kind, node, root, depth)


def _typed_example(kind: Any, node: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    match kind:
        case "null":
            return None
        case "boolean":
            return False
        case "integer" | "number":
            return _number(node)
        case "string":
            if "pattern" in node:
                return _NONE
            size = min(max(node.get("minLength", 1), 1), node.get("maxLength", LENGTH_MOST), LENGTH_MOST)
            return FORMATS.get(node.get("format", ""), "x" * size)
        case "array":
            item = _example(node.get("items"), root, depth + 1)
            fewest = node.get("minItems", 0)
            if item is _NONE or "prefixItems" in node:
                return [] if fewest == 0 and "prefixItems" not in node else _NONE
            return [item] * min(max(fewest, 1), node.get("maxItems", LENGTH_MOST), LENGTH_MOST)
        case "object":
            members = node.get("properties", {})
            found = {name: _example(members.get(name), root, depth + 1) for name in node.get("required", ())}
            return _NONE if any(value is _NONE for value in found.values()) else found
        case _:
            return _NONE


def _number(node: Mapping[str, Any]) -> Any:
    step = node.get("multipleOf", 1)
    if "minimum" in node:
        return node["minimum"]
    if "exclusiveMinimum" in node:
        return node["exclusiveMinimum"] + step
    if "maximum" in node:
        return node["maximum"]
    return node["exclusiveMaximum"] - step if "exclusiveMaximum" in node else step
