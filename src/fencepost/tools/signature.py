"""A function read as a tool: its parameters, their types and the words about them.

Rule 1: what a model could not fill in, or we could not validate, is refused when the tool is defined, in one
sentence that names the function and the parameter.
Rule 2: a parameter annotated `CallContext` is given by the runtime and is no part of the schema.
"""

from __future__ import annotations

import enum
import inspect
import re
import typing
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec import Struct

from fencepost.core.errors import DefinitionInvalid
from fencepost.ports import CallContext
from fencepost.tools.annotations import description_of, understood

_SECTION = re.compile(r"(Args|Arguments|Parameters):\s*")
_ARGUMENT = re.compile(r"(\s+)\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")


class Signature(Struct, frozen=True):
    """What a function takes: `arguments` is a Struct of its parameters, `context` names the injected one."""

    arguments: type[Struct]
    names: tuple[str, ...]
    descriptions: dict[str, str]
    description: str
    context: str | None


def signature_of(function: Callable[..., Any], name: str) -> Signature:
    """The signature of a function as a tool, or DefinitionInvalid with one sentence on what is in the way."""
    where = f"tool {name}"
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise DefinitionInvalid(f"{where}: a generator function cannot be a tool; return one value")
    hints = _hints(function, where)
    about, documented = read_docstring(inspect.getdoc(function) or "")
    fields: list[Any] = []
    descriptions: dict[str, str] = {}
    contexts: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        spot = f"{where}, parameter {parameter.name}"
        _check_parameter(parameter, hints, spot)
        hint = hints[parameter.name]
        if hint is CallContext:
            contexts.append(parameter.name)
            continue
        words = _described(hint) or documented.get(parameter.name)
        if words:
            descriptions[parameter.name] = words
        fields.append(_field(parameter, understood(hint, spot)))
    if len(contexts) > 1:
        raise DefinitionInvalid(f"{where}: one CallContext is enough, found {' and '.join(contexts)}")
    arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=False)
    return Signature(arguments, tuple(f[0] for f in fields), descriptions, about, next(iter(contexts), None))


def _hints(function: Callable[..., Any], where: str) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    try:
        return typing.get_type_hints(target, include_extras=True)
    except NameError as why:
        raise DefinitionInvalid(
            f"{where}: an annotation names something that its module does not ({why}); define the type at the"
            " top of the module"
        ) from None
    except (TypeError, SyntaxError) as why:
        raise DefinitionInvalid(f"{where}: its annotations cannot be read ({why})") from None


def _check_parameter(parameter: inspect.Parameter, hints: dict[str, Any], spot: str) -> None:
    match parameter.kind:
        case inspect.Parameter.VAR_POSITIONAL | inspect.Parameter.VAR_KEYWORD:
            raise DefinitionInvalid(f"{spot}: *args and **kwargs have no schema; name every argument")
        case inspect.Parameter.POSITIONAL_ONLY:
            raise DefinitionInvalid(
                f"{spot}: it is positional only, and arguments come by name; remove the /"
            )
    if parameter.name not in hints:
        raise DefinitionInvalid(f"{spot}: it has no annotation, so nothing could be checked; give it a type")
    if parameter.name.startswith("__") and parameter.name.endswith("__"):
        raise DefinitionInvalid(f"{spot}: names with two underscores on both sides are the language's own")


def _field(parameter: inspect.Parameter, hint: Any) -> tuple[Any, ...]:
    default = parameter.default
    if default is inspect.Parameter.empty:
        return (parameter.name, hint)
    if default is None or isinstance(default, (bool, int, float, str, enum.Enum)):
        return (parameter.name, hint, default)
    return (parameter.name, hint, msgspec.field(default_factory=lambda: default))


def _described(hint: Any) -> str | None:
    if get_origin(hint) is not Annotated:
        return None
    return next(filter(None, map(description_of, get_args(hint)[1:])), None)


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The first paragraph as one line, and what an `Args:` section says of each argument."""
    lines = text.splitlines()
    paragraph = []
    for line in lines:
        if not line.strip() or _SECTION.fullmatch(line):
            break
        paragraph.append(line.strip())
    return " ".join(paragraph), _documented(lines)


def _documented(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    current, indent, inside = "", 0, False
    for line in lines:
        if not inside:
            inside = _SECTION.fullmatch(line) is not None
            continue
        if line.strip() and not line[0].isspace():
            break
        entry = _ARGUMENT.fullmatch(line)
        if entry is not None and (not current or len(entry[1]) <= indent):
            current, indent = entry[2], len(entry[1])
            found[current] = entry[3].strip()
        elif current and line.strip():
            found[current] = f"{found[current]} {line.strip()}".strip()
    return found
