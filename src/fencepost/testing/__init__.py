"""What users test their agents with: fake time, scripted models, faults, crashes, the suite for stores.

The names below are public and are loaded when first used. The store suite is imported by its own name,
`fencepost.testing.store_contract`, because it needs pytest. `python -m fencepost.testing.crash` kills the
real command at a named place.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.models.function import FunctionModel as FunctionModel
    from fencepost.models.scripted import ScriptedModel as ScriptedModel
    from fencepost.models.scripted import answer as answer
    from fencepost.models.scripted import call as call
    from fencepost.models.scripted import calls as calls
    from fencepost.models.scripted import say as say
    from fencepost.models.wrappers import Fault as Fault
    from fencepost.models.wrappers import FaultyModel as FaultyModel
    from fencepost.models.wrappers import MeteredModel as MeteredModel
    from fencepost.models.wrappers import TimeoutModel as TimeoutModel
    from fencepost.stores.hooks import HOOKS as HOOKS
    from fencepost.testing.clock import FakeClock as FakeClock
    from fencepost.testing.pauses import Crashed as Crashed
    from fencepost.testing.pauses import Pauses as Pauses
    from fencepost.testing.pauses import Place as Place
    from fencepost.testing.pauses import reach as reach

_HOME = {
    "FunctionModel": "models.function", "ScriptedModel": "models.scripted",
    "answer": "models.scripted", "call": "models.scripted", "calls": "models.scripted",
    "say": "models.scripted",
    "Fault": "models.wrappers", "FaultyModel": "models.wrappers", "MeteredModel": "models.wrappers",
    "TimeoutModel": "models.wrappers",
    "HOOKS": "stores.hooks", "FakeClock": "testing.clock",
    "Crashed": "testing.pauses", "Pauses": "testing.pauses", "Place": "testing.pauses",
    "reach": "testing.pauses",
}  # fmt: skip

__all__ = sorted(_HOME)  # noqa: PLE0605 - the names are strings, from the table above


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fencepost.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"fencepost.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
