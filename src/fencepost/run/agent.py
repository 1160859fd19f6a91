"""An agent is a definition: what is fixed in entry 1 of each of its tasks, and the live parts that run it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from fencepost.core.eliding import READ_ARTIFACT
from fencepost.core.entries import ENTRY_VERSION, Opened, decode_body, encode_body, kind_of
from fencepost.core.errors import DefinitionInvalid
from fencepost.core.evidence import ANSWER_SCHEMA
from fencepost.core.limits import Limits
from fencepost.core.messages import Effect, ToolDefinition
from fencepost.core.recovery import Recovery
from fencepost.core.state import ANSWER_TOOL
from fencepost.ports import Authorization, Boundary, Model, Store, Tool
from fencepost.run.artifacts import RESULT_BYTES_LEAST, ReadArtifact

NAME = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")


class DefaultBoundary:
    """Without rules, reading is allowed and everything else asks (contract 4.6)."""

    version = "default"
    self_approval = True
    _ALLOW = Authorization("allow", "", "default")
    _ASK = Authorization("ask", "no rule allows this effect", "default")

    def authorize(self, principal: str, definition: ToolDefinition, arguments: str, /) -> Authorization:
        """Allow for "read", ask for "idempotent" and "write"."""
        return self._ALLOW if definition.effect is Effect.READ else self._ASK


@dataclasses.dataclass(frozen=True)
class Agent:
    """Who does a task: a model, tools, instructions, budgets and policies.

    `limits` has no default, because `Limits.steps` has none. `answer` is "text", or "cited" for an answer whose
    claims cite evidence. `boundary` answers allow, ask or deny; the default allows only reading. `artifacts` gives
    the model the tool `read_artifact`, with which it reads the whole of results that it was shown cut.
    """

    name: str
    model: Model
    limits: Limits
    tools: Sequence[Tool] = ()
    instructions: str = ""
    recovery: Recovery = dataclasses.field(default_factory=Recovery.default)
    answer: Literal["text", "cited"] = "text"
    boundary: Boundary = dataclasses.field(default_factory=DefaultBoundary)
    artifacts: bool = False

    @functools.cached_property
    def by_name(self) -> dict[str, Tool]:
        """The tools by their names, `read_artifact` included where it is given."""
        own = {tool.definition.name: tool for tool in self.tools}
        return {**own, READ_ARTIFACT: ReadArtifact(self.limits.result_bytes)} if self.artifacts else own

    def tools_in(self, store: Store) -> dict[str, Tool]:
        """The tools by their names, for tasks of this store."""
        if not self.artifacts:
            return self.by_name
        return {**self.by_name, READ_ARTIFACT: ReadArtifact(self.limits.result_bytes, store)}

    def check(self) -> None:
        """Raise DefinitionInvalid, saying what to change, unless the agent can be run."""
        _ = self._sound  # an agent does not change, so it is looked at once

    @functools.cached_property
    def _sound(self) -> bool:
        if not NAME.match(self.name):
            raise DefinitionInvalid(f"agent name {self.name!r} must be 1 to 128 of A-Z a-z 0-9 . _ -")
        if self.answer not in ("text", "cited"):
            raise DefinitionInvalid(f"answer must be 'text' or 'cited', got {self.answer!r}")
        if not (hasattr(self.model, "profile") and callable(getattr(self.model, "reply", None))):
            raise DefinitionInvalid(
                f"model {type(self.model).__name__} has no profile and reply(request, sink)"
            )
        profile = self.model.profile
        context, output = profile.context_tokens, profile.max_output_tokens
        if context is not None and context <= output:
            raise DefinitionInvalid(
                f"model {profile.name} takes {context} tokens in all and may use {output} of them for a reply;"
                " nothing is left for a request, so lower max_output_tokens"
            )
        seen: set[str] = set()
        for tool in self.tools:
            if not (hasattr(tool, "definition") and callable(getattr(tool, "prepare", None))):
                raise DefinitionInvalid(f"{tool!r} is not a tool; decorate the function with @tool")
            name = tool.definition.name
            if not NAME.match(name):
                raise DefinitionInvalid(f"tool name {name!r} must be 1 to 128 of A-Z a-z 0-9 . _ -")
            if name == ANSWER_TOOL and self.answer == "cited":
                raise DefinitionInvalid(
                    f"the tool name {ANSWER_TOOL!r} is reserved for cited answers; rename the tool"
                )
            if name == READ_ARTIFACT and self.artifacts:
                raise DefinitionInvalid(
                    f"the tool name {READ_ARTIFACT!r} is reserved where artifacts are read; rename the tool"
                )
            if name in seen:
                raise DefinitionInvalid(f"two tools are named {name!r}; rename one")
            seen.add(name)
        self.limits.check()
        if self.artifacts and self.limits.result_bytes < RESULT_BYTES_LEAST:
            raise DefinitionInvalid(
                f"limits.result_bytes is {self.limits.result_bytes}; artifacts are read in parts of at least"
                f" {RESULT_BYTES_LEAST} bytes, so give more"
            )
        return True

    @functools.cached_property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The tools as a task is told them, the answer tool included where citations are asked for."""
        own = tuple(tool.definition for tool in self.by_name.values())
        return (*own, ANSWER_DEFINITION) if self.answer == "cited" else own

    @functools.cached_property
    def definition(self) -> str:
        """The digest of everything a task of this agent is defined with, its prompt aside (contract 2.6)."""
        parts = (self.name, self.instructions, self.definitions, self.limits, self.recovery, self.answer)
        return hashlib.sha256(b"fencepost/definition/v1\0" + msgspec.json.encode(parts)).hexdigest()

    def changes_from(self, opened: Opened) -> tuple[str, ...]:
        """What a task opened with `opened` would find changed: parts and tools by name, in a fixed order."""
        now, parts = self._opened, ("agent", "instructions", "limits", "recovery", "answer")
        before, after = ({tool.name: tool for tool in each.tools} for each in (opened, now))
        tools = (
            f"tool {name}" for name in sorted({**before, **after}) if before.get(name) != after.get(name)
        )
        return (*(part for part in parts if getattr(opened, part) != getattr(now, part)), *tools)

    def opened(self, prompt: str, requester: str, labels: tuple[tuple[str, str], ...] = ()) -> Opened:
        """Entry 1 of a task of this agent."""
        return replace(self._opened, prompt=prompt, requester=requester, labels=labels)

    @functools.cached_property
    def _opened(self) -> Opened:
        opened = Opened(
            "",
            self.name,
            self.instructions,
            self.definitions,
            self.limits,
            self.recovery,
            self.definition,
            "",
            answer=self.answer,
            model=self.model.profile.name,
        )
        # Read back once: where a caller wrote 5 for 5.0, the entry must encode the same before and after a store.
        return decode_body(kind_of(opened), ENTRY_VERSION, encode_body(opened))  # type: ignore[return-value]


ANSWER_DEFINITION = ToolDefinition(
    ANSWER_TOOL,
    "Give the final answer. Every claim cites a result of this task; observations and causes are kept apart.",
    ANSWER_SCHEMA,
    effect=Effect.READ,
    digest=hashlib.sha256(ANSWER_SCHEMA.encode()).hexdigest(),
)
