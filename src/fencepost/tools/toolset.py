"""The tools of one agent, found by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fencepost.core.errors import DefinitionInvalid
from fencepost.core.messages import ToolDefinition
from fencepost.ports import Tool
from fencepost.tools.function import NAME

# The name of the call that ends a task with a cited answer.
RESERVED = frozenset({"answer"})
# An unknown tool's result lists the tools that exist; more names than this help no model (L06).
MAX_LISTED = 50
# More tools than a provider accepts in one request.
MAX_TOOLS = 512


class Toolset:
    """An immutable set of tools with unique names; iterates in the order it was given."""

    __slots__ = ("_by_name",)

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        found: dict[str, Tool] = {}
        for tool in tools:
            if not isinstance(tool, Tool):
                raise DefinitionInvalid(f"{tool!r:.200} is not a tool; decorate the function with @tool")
            name = tool.definition.name
            if not NAME.fullmatch(name):
                raise DefinitionInvalid(
                    f"tool {name!r:.140}: a name has 1 to 128 of the characters A-Z a-z 0-9 . _ -"
                )
            if name in RESERVED:
                raise DefinitionInvalid(
                    f"tool {name}: the name is reserved for the end of a task; choose another"
                )
            if name in found:
                raise DefinitionInvalid(f"two tools are named {name}; give one of them another name")
            found[name] = tool
            if len(found) > MAX_TOOLS:
                raise DefinitionInvalid(f"more than {MAX_TOOLS} tools; give the agent fewer")
        self._by_name = found

    def find(self, name: str) -> Tool | None:
        """The tool with this name, or None."""
        return self._by_name.get(name)

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The definitions in order."""
        return tuple(tool.definition for tool in self._by_name.values())

    def listed(self) -> str:
        """The names for a model that asked for another one; at most MAX_LISTED of them."""
        names = list(self._by_name)
        more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
        return (", ".join(names[:MAX_LISTED]) + more) or "none"

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name
