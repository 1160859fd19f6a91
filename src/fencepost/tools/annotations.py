"""Type annotations as the validator will really see them; what it would ignore is refused (findings 3).

Rule 1: bounds of `annotated_types` become `msgspec.Meta`; a str or a `Doc` becomes a description; any other
metadata is refused when the tool is defined, because a bound nobody checks is worse than none.
Rule 2: inside a class of the user (dataclass, Struct, TypedDict) the annotations cannot be rewritten, so only
`msgspec.Meta` and descriptions are accepted there.
Rule 3: pydantic is never imported: a model is known by what it can do.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import msgspec
import msgspec.inspect as kinds
from msgspec import Meta

from fencepost.core.errors import DefinitionInvalid

# Deeper annotations, or aliases that name themselves, are not something a model could fill in.
MAX_NESTING = 32

_BOUNDS = {
    "Ge": {"ge": "ge"},
    "Gt": {"gt": "gt"},
    "Le": {"le": "le"},
    "Lt": {"lt": "lt"},
    "MultipleOf": {"multiple_of": "multiple_of"},
    "MinLen": {"min_length": "min_length"},
    "MaxLen": {"max_length": "max_length"},
    "Len": {"min_length": "min_length", "max_length": "max_length"},
    "Interval": {"ge": "ge", "gt": "gt", "le": "le", "lt": "lt"},
}


def understood(hint: Any, where: str, depth: int = 0) -> Any:
    """The annotation with its metadata as `msgspec.Meta`; DefinitionInvalid names what cannot be mapped."""
    if depth > MAX_NESTING:
        raise DefinitionInvalid(f"{where}: the annotation is nested more than {MAX_NESTING} deep")
    if hasattr(hint, "__supertype__"):  # a NewType
        return understood(hint.__supertype__, where, depth + 1)
    if type(hint).__name__ == "TypeAliasType":  # `type X = …`, from Python 3.12
        return understood(hint.__value__, where, depth + 1)
    origin = get_origin(hint)
    if origin is None or origin is typing.Literal:
        return hint
    if origin is Annotated:
        base, *metadata = get_args(hint)
        metas = [_meta(item, where) for item in metadata]
        inner = understood(base, where, depth + 1)
        return Annotated.__class_getitem__((inner, *metas))
    arguments = tuple(understood(item, where, depth + 1) for item in get_args(hint))
    if origin in (typing.Union, types.UnionType):
        return typing.Union[arguments]  # noqa: UP007 - built at run time
    return hint if arguments == get_args(hint) else origin[arguments]


def _meta(item: Any, where: str) -> Meta:
    if isinstance(item, Meta):
        return item
    description = description_of(item)
    if description is not None:
        return Meta(description=description)
    names = _BOUNDS.get(type(item).__name__) if type(item).__module__ == "annotated_types" else None
    if names is None:
        raise DefinitionInvalid(
            f"{where}: the metadata {_named(item)} in Annotated would not be checked; use msgspec.Meta,"
            " a bound of annotated_types (Ge, Gt, Le, Lt, Interval, MultipleOf, MinLen, MaxLen, Len) or a"
            " description"
        )
    bounds = {ours: getattr(item, theirs) for theirs, ours in names.items()}
    try:
        return Meta(**{name: bound for name, bound in bounds.items() if bound is not None})
    except (TypeError, ValueError) as why:
        raise DefinitionInvalid(f"{where}: the bound {_named(item)} cannot be used ({why})") from None


def description_of(item: object) -> str | None:
    """The description in a piece of Annotated metadata: a str, a `Doc`, a `Meta` with one; else None."""
    if isinstance(item, str):
        return item
    if isinstance(item, Meta):
        return item.description
    found = getattr(item, "documentation", None)
    return found if isinstance(found, str) else None


def is_model(kind: Any) -> bool:
    """Whether a class validates itself as pydantic's models do."""
    return (
        isinstance(kind, type) and hasattr(kind, "model_validate_json") and hasattr(kind, "model_json_schema")
    )


def check_kinds(root: kinds.Type, where: str) -> None:
    """Raise DefinitionInvalid for a type, anywhere inside, that would not be validated strictly."""
    for kind in everything_in(root):
        match kind:
            case kinds.CustomType(cls=cls) if not is_model(cls):
                raise DefinitionInvalid(
                    f"{where}: the type {_named(cls)} is not supported; use a plain type, dataclass, msgspec"
                    " Struct, TypedDict, enum or pydantic model"
                )
            case kinds.RawType() | kinds.ExtType():
                raise DefinitionInvalid(
                    f"{where}: raw and extension types carry data that nobody has validated"
                )
            case kinds.StructType() | kinds.DataclassType() | kinds.TypedDictType() | kinds.NamedTupleType():
                _check_class(kind.cls, where)


def _check_class(cls: type, where: str) -> None:
    if hasattr(cls, "__pydantic_fields__"):
        raise DefinitionInvalid(
            f"{where}: {_named(cls)} is a pydantic dataclass; use a pydantic model instead"
        )
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        for item in _metadata_in(hint):
            if not isinstance(item, Meta) and description_of(item) is None:
                raise DefinitionInvalid(
                    f"{where}: the metadata {_named(item)} at {_named(cls)}.{name} would not be checked;"
                    " inside a class write msgspec.Meta"
                )


def _metadata_in(hint: Any) -> Iterator[Any]:
    if get_origin(hint) is typing.Literal:
        return
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__
    for item in get_args(hint):
        yield from _metadata_in(item)


def everything_in(root: kinds.Type) -> Iterator[kinds.Type]:
    """Every type inside a type, each once, classes that contain themselves included."""
    waiting, seen = [root], set()
    while waiting:
        kind = waiting.pop()
        if id(kind) in seen:
            continue
        seen.add(id(kind))
        yield kind
        waiting.extend(members_of(kind))


def members_of(kind: kinds.Type) -> list[kinds.Type]:
    """The types directly inside a type."""
    match kind:
        case kinds.Metadata(type=inner):
            return [inner]
        case kinds.UnionType(types=inside):
            return list(inside)
        case (
            kinds.ListType(item_type=item)
            | kinds.SetType(item_type=item)
            | kinds.FrozenSetType(item_type=item)
        ):
            return [item]
        case kinds.VarTupleType(item_type=item):
            return [item]
        case kinds.TupleType(item_types=items):
            return list(items)
        case kinds.DictType(key_type=key, value_type=value):
            return [key, value]
        case kinds.StructType() | kinds.DataclassType() | kinds.TypedDictType() | kinds.NamedTupleType():
            return [field.type for field in kind.fields]
    return []


def _named(item: object) -> str:
    if isinstance(item, type):
        return item.__qualname__
    text = repr(item)
    return text if len(text) <= 80 else text[:80] + "…"


def inspected(hint: Any, where: str) -> kinds.Type:
    """What msgspec makes of an annotation, or DefinitionInvalid when it cannot check it."""
    try:
        return kinds.type_info(hint)
    except (TypeError, ValueError, NameError, msgspec.MsgspecError) as why:
        raise DefinitionInvalid(f"{where}: the annotation cannot be validated ({why})") from None
