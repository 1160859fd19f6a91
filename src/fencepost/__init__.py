"""Fencepost: an agent runtime for work that matters.

The names below are the public package; everything else may change. They are loaded when first used, so that
`import fencepost` costs nothing it does not need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.core.entries import Answer as Answer
    from fencepost.core.entries import Claim as Claim
    from fencepost.core.entries import Entry as Entry
    from fencepost.core.errors import ArgumentsInvalid as ArgumentsInvalid
    from fencepost.core.errors import DefinitionInvalid as DefinitionInvalid
    from fencepost.core.errors import Fenced as Fenced
    from fencepost.core.errors import FencepostError as FencepostError
    from fencepost.core.errors import ModelFailed as ModelFailed
    from fencepost.core.errors import OutcomeUnknown as OutcomeUnknown
    from fencepost.core.errors import StoreFailed as StoreFailed
    from fencepost.core.errors import TaskNotFound as TaskNotFound
    from fencepost.core.errors import ToolFailed as ToolFailed
    from fencepost.core.lifecycle import StopReason as StopReason
    from fencepost.core.lifecycle import TaskState as TaskState
    from fencepost.core.limits import Limits as Limits
    from fencepost.core.messages import AssistantMessage as AssistantMessage
    from fencepost.core.messages import Effect as Effect
    from fencepost.core.messages import Finish as Finish
    from fencepost.core.messages import ModelProfile as ModelProfile
    from fencepost.core.messages import ModelRequest as ModelRequest
    from fencepost.core.messages import Reply as Reply
    from fencepost.core.messages import ToolCall as ToolCall
    from fencepost.core.messages import ToolMessage as ToolMessage
    from fencepost.core.messages import Usage as Usage
    from fencepost.core.messages import UserMessage as UserMessage
    from fencepost.core.recovery import Recovery as Recovery
    from fencepost.library import resume_task as resume_task
    from fencepost.library import run_task as run_task
    from fencepost.models.function import FunctionModel as FunctionModel
    from fencepost.models.recorded import RecordedModel as RecordedModel
    from fencepost.models.scripted import ScriptedModel as ScriptedModel
    from fencepost.ports import CallContext as CallContext
    from fencepost.ports import Model as Model
    from fencepost.ports import Reconciled as Reconciled
    from fencepost.ports import Store as Store
    from fencepost.ports import Tool as Tool
    from fencepost.run.agent import Agent as Agent
    from fencepost.run.live import Event as Event
    from fencepost.run.live import Live as Live
    from fencepost.run.running import Result as Result
    from fencepost.service.replay.replaying import Replay as Replay
    from fencepost.service.replay.replaying import replay as replay
    from fencepost.service.tasks import cancel as cancel
    from fencepost.service.tasks import decide_approval as decide_approval
    from fencepost.service.tasks import resolve_outcome as resolve_outcome
    from fencepost.stores.memory import MemoryStore as MemoryStore
    from fencepost.stores.sqlite import SqliteStore as SqliteStore
    from fencepost.tools.channel import ProcessLimits as ProcessLimits
    from fencepost.tools.function import tool as tool
    from fencepost.tools.rules import Rules as Rules

__version__ = "0.1.0"

_HOME = {
    "Answer": "core.entries", "Claim": "core.entries", "Entry": "core.entries",
    "ArgumentsInvalid": "core.errors", "DefinitionInvalid": "core.errors", "Fenced": "core.errors",
    "FencepostError": "core.errors", "ModelFailed": "core.errors", "OutcomeUnknown": "core.errors",
    "StoreFailed": "core.errors", "TaskNotFound": "core.errors", "ToolFailed": "core.errors",
    "StopReason": "core.lifecycle", "TaskState": "core.lifecycle", "Limits": "core.limits",
    "Effect": "core.messages", "Finish": "core.messages", "ModelProfile": "core.messages",
    "ModelRequest": "core.messages", "Reply": "core.messages", "ToolCall": "core.messages",
    "AssistantMessage": "core.messages", "UserMessage": "core.messages",
    "ToolMessage": "core.messages", "Usage": "core.messages", "Recovery": "core.recovery",
    "resume_task": "library", "run_task": "library",
    "FunctionModel": "models.function", "ScriptedModel": "models.scripted",
    "RecordedModel": "models.recorded",
    "Replay": "service.replay.replaying", "replay": "service.replay.replaying",
    "cancel": "service.tasks", "decide_approval": "service.tasks", "resolve_outcome": "service.tasks",
    "CallContext": "ports", "Model": "ports", "Reconciled": "ports", "Store": "ports", "Tool": "ports",
    "Agent": "run.agent",
    "Event": "run.live", "Live": "run.live", "Result": "run.running",
    "MemoryStore": "stores.memory", "SqliteStore": "stores.sqlite",
    "ProcessLimits": "tools.channel", "tool": "tools.function", "Rules": "tools.rules",
}  # fmt: skip

__all__ = ["__version__", *sorted(_HOME)]  # noqa: PLE0604 - the names are strings, from the table above


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fencepost' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"fencepost.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
