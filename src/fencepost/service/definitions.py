"""Where a task's agent is written: a name we know, `module:attribute`, or `file.py:attribute`.

Rule 1: a task remembers its source in the labels of entry 1, so that whoever resumes it need not know it.
Rule 2: whatever is wrong with somebody's module is one DefinitionInvalid that says where; the module is the
user's own code, so it may do anything while it is imported, and nothing of it is caught but errors and exits.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType

from msgspec import Struct

from fencepost.core.entries import Opened
from fencepost.core.errors import DefinitionInvalid, FencepostError
from fencepost.run.agent import Agent

# The labels of entry 1 that say where the agent is from; an option's label has its name behind the prefix.
LABEL, OPTION = "fencepost.agent", "fencepost.option."


class Source(Struct, frozen=True):
    """Where an agent is from: a name or a place in code, and the options it was made with."""

    name: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def labels(self) -> tuple[tuple[str, str], ...]:
        """What entry 1 keeps of it."""
        return ((LABEL, self.name), *((OPTION + name, value) for name, value in self.options))

    def option(self, name: str) -> str | None:
        """The option, None when it was not given."""
        return dict(self.options).get(name)


def source_of(opened: Opened) -> Source | None:
    """The source a task was opened from, None when it came from a program that did not say."""
    labels = dict(opened.labels)
    if LABEL not in labels:
        return None
    options = tuple(
        (name.removeprefix(OPTION), value) for name, value in opened.labels if name.startswith(OPTION)
    )
    return Source(labels[LABEL], options)


def absolute(name: str) -> str:
    """The same source, also from another folder: a file by its whole path."""
    place, colon, attribute = name.rpartition(":")
    if not colon or not place.endswith(".py"):
        return name
    return f"{Path(place).absolute()}:{attribute}"


def load(name: str) -> Agent:
    """The agent at `module:attribute` or `file.py:attribute`: an Agent, or what a function there returns."""
    found = named_object(name, what="agent")
    if inspect.isclass(found) or isinstance(found, Agent) or not callable(found):
        return _agent(found, name)
    return _agent(_called(found, name), name)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise DefinitionInvalid(f"there is no file {path}; name a Python file that defines the agent")
    path = path.absolute()
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as `python FILE` does, so that it finds what lies beside it
    module_name = f"fencepost_agent_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and msgspec look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as why:
        del sys.modules[module_name]
        raise DefinitionInvalid(f"{path} cannot be imported: {_where(why, str(path))}") from why
    return module


def _from_module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m MODULE` does
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as why:
        if why.name is not None and (name == why.name or name.startswith(f"{why.name}.")):
            raise DefinitionInvalid(
                f"there is no module {name} here; start in its folder, or name a file as file.py:attribute"
            ) from None
        raise DefinitionInvalid(f"module {name} cannot be imported: {_where(why, name)}") from why
    except (Exception, SystemExit) as why:
        raise DefinitionInvalid(f"module {name} cannot be imported: {_where(why, name)}") from why


def _attribute(module: ModuleType, attribute: str, place: str) -> object:
    try:
        return getattr(module, attribute)
    except AttributeError:
        near = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise DefinitionInvalid(f"{place} has no attribute {attribute!r}{hint}") from None


def _called(function: object, name: str, what: str = "agent") -> object:
    assert callable(function)
    if inspect.iscoroutinefunction(function):
        raise DefinitionInvalid(f"{name} is async; what makes the {what} is a plain function")
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        raise DefinitionInvalid(
            f"{name} needs arguments; what makes the {what} is a function without any"
        ) from None
    try:
        return function()
    except FencepostError as why:
        raise DefinitionInvalid(f"{name} made no {what}: {why}") from why
    except (Exception, SystemExit) as why:
        raise DefinitionInvalid(f"{name} made no {what}: {_where(why, name)}") from why


def _agent(found: object, name: str) -> Agent:
    if not isinstance(found, Agent):
        kind = found.__name__ if isinstance(found, type) else type(found).__name__
        raise DefinitionInvalid(
            f"{name} is a {kind}; it must be a fencepost.Agent or a function that returns one"
        )
    found.check()
    return found


def _where(why: BaseException, place: str) -> str:
    """The error and the line it came from, in one sentence."""
    if isinstance(why, SyntaxError):
        return f"{why.msg}, line {why.lineno}"
    frames = traceback.extract_tb(why.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    line = f", {own[-1].filename} line {own[-1].lineno}" if own else f", {place}"
    said = str(why).strip().splitlines()
    return f"{type(why).__name__}{': ' + said[0] if said else ''}{line}"


def load_object(
    name: str, *, kinds: tuple[type, ...], what: str, modules: dict[str, ModuleType] | None = None
) -> object:
    """The object at `module:attribute` or `file.py:attribute`, or what a function there returns.

    `kinds` are the types (or runtime-checkable ports) it must have, `what` is that in words; `modules` is as for
    `named_object`. Raises DefinitionInvalid. An object of one of the kinds is never called, callable or not.
    """
    found = named_object(name, what=what, modules=modules)
    if isinstance(found, kinds) and not inspect.isclass(found):
        return found
    made = _called(found, name, what) if callable(found) and not inspect.isclass(found) else found
    if isinstance(made, kinds) and not inspect.isclass(made):
        return made
    kind = made.__name__ if isinstance(made, type) else type(made).__name__
    raise DefinitionInvalid(f"{name} is a {kind}; it must be a {what}, or a function that returns one")


def named_object(name: str, *, what: str, modules: dict[str, ModuleType] | None = None) -> object:
    """Whatever is at `module:attribute` or `file.py:attribute`, as it is. Raises DefinitionInvalid.

    A file is run each time, as it may have changed; objects that have to share one run of it share `modules`.
    """
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute.isidentifier():
        raise DefinitionInvalid(f"{name!r} names no {what}; write module:attribute or file.py:attribute")
    known = {} if modules is None else modules
    if place not in known:
        known[place] = _from_file(Path(place)) if place.endswith(".py") else _from_module(place)
    return _attribute(known[place], attribute, place)
