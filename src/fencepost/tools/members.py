"""Members that no type names are found at every depth, because msgspec drops them inside classes.

The check is compiled once per tool from what msgspec knows of the types, and runs on values that were already
validated: it looks only for keys. The arguments themselves are such a class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec.inspect as kinds

from fencepost.core.strictjson import child, quoted
from fencepost.tools.annotations import everything_in, members_of

Check = Callable[[Any, str], "str | None"]

_CLASSES = (kinds.StructType, kinds.DataclassType, kinds.TypedDictType)


def unknown_member_check(kind: kinds.Type) -> Check | None:
    """A function (value, path) that says what is wrong with an unknown member, or None where none can be."""
    if not any(
        isinstance(inside, _CLASSES) for member in members_of(kind) for inside in everything_in(member)
    ):
        return None
    return _compiled(kind, {})


def _compiled(kind: kinds.Type, known: dict[int, Check]) -> Check:
    if id(kind) in known:  # a class that contains itself
        return lambda value, path: known[id(kind)](value, path)  # noqa: PLW0108 - it is known later
    known[id(kind)] = _nothing
    match kind:
        case kinds.Metadata(type=inner):
            check = _compiled(inner, known)
        case kinds.StructType(array_like=True):
            check = _positions(
                [_compiled(item, known) for item in members_of(kind)], offset=int(kind.tag is not None)
            )
        case kinds.StructType() | kinds.DataclassType() | kinds.TypedDictType():
            check = _class(kind, known)
        case kinds.NamedTupleType() | kinds.TupleType():
            check = _positions([_compiled(item, known) for item in members_of(kind)], offset=0)
        case kinds.DictType(value_type=member):
            check = _values(_compiled(member, known))
        case kinds.ListType() | kinds.SetType() | kinds.FrozenSetType() | kinds.VarTupleType():
            check = _items(_compiled(kind.item_type, known))
        case kinds.UnionType(types=branches):
            check = _union(branches, known)
        case _:
            check = _nothing
    known[id(kind)] = check
    return check


def _nothing(_value: Any, _path: str) -> str | None:
    return None


def _class(
    kind: kinds.StructType | kinds.DataclassType | kinds.TypedDictType, known: dict[int, Check]
) -> Check:
    members = {field.encode_name: _compiled(field.type, known) for field in kind.fields}
    if isinstance(kind, kinds.StructType) and kind.tag_field is not None:
        members[kind.tag_field] = _nothing
    allowed = ", ".join(quoted(name) for name in members) or "none"

    def check(value: Any, path: str) -> str | None:
        if not isinstance(value, dict):
            return None
        for key, member in value.items():
            look = members.get(key)
            if look is None:
                return f"unknown field at {child(path, key)}; the fields there are: {allowed}"
            if (problem := look(member, child(path, key))) is not None:
                return problem
        return None

    return check


def _values(look: Check) -> Check:
    def check(value: Any, path: str) -> str | None:
        if not isinstance(value, dict):
            return None
        problems = (look(member, child(path, key)) for key, member in value.items())
        return next(filter(None, problems), None)

    return check


def _items(look: Check) -> Check:
    def check(value: Any, path: str) -> str | None:
        if not isinstance(value, list):
            return None
        problems = (look(member, child(path, index)) for index, member in enumerate(value))
        return next(filter(None, problems), None)

    return check


def _positions(looks: list[Check], *, offset: int) -> Check:
    """For arrays whose positions have types; `offset` is 1 where the first is a tag."""

    def check(value: Any, path: str) -> str | None:
        if not isinstance(value, list):
            return None
        pairs = enumerate(zip(value[offset:], looks, strict=False), offset)
        problems = (look(member, child(path, index)) for index, (member, look) in pairs)
        return next(filter(None, problems), None)

    return check


def _union(branches: tuple[kinds.Type, ...], known: dict[int, Check]) -> Check:
    """The check of a union: it holds one type that is an object, or several Structs told apart by tags."""
    tagged: dict[Any, Check] = {}
    others: list[Check] = []
    field = "type"
    for branch in branches:
        inner = branch.type if isinstance(branch, kinds.Metadata) else branch
        if isinstance(inner, kinds.StructType) and inner.tag_field is not None and not inner.array_like:
            field = inner.tag_field
            tagged[inner.tag] = _compiled(inner, known)
        else:
            others.append(_compiled(inner, known))

    def check(value: Any, path: str) -> str | None:
        if tagged and isinstance(value, dict):
            return tagged.get(value.get(field), _nothing)(value, path)
        return next(filter(None, (look(value, path) for look in others)), None)

    return check
