"""A set of tools: unique names, found by name, listed for a model that asked for another."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.core.errors import DefinitionInvalid
from fencepost.core.messages import ToolDefinition
from fencepost.tools.function import FunctionTool
from fencepost.tools.toolset import MAX_LISTED, MAX_TOOLS, Toolset


def _take(a: int) -> None: ...


def named(name: str) -> FunctionTool:
    return FunctionTool(_take, name=name)


class Foreign(FunctionTool):
    """A tool of another kind, whose name nobody has checked."""

    @property
    def definition(self) -> ToolDefinition:
        return ToolDefinition("no good", "", "{}")


def test_tools_are_found_by_name_and_listed_in_order() -> None:
    first, second = named("b"), named("a")
    tools = Toolset([first, second])
    assert tools.find("a") is second
    assert tools.find("c") is None
    assert list(tools) == [first, second]
    assert len(tools) == 2
    assert "b" in tools
    assert "c" not in tools
    assert [definition.name for definition in tools.definitions] == ["b", "a"]
    assert tools.listed() == "b, a"
    assert Toolset().listed() == "none"


def test_at_most_fifty_names_are_listed() -> None:
    tools = Toolset(named(f"t{n}") for n in range(MAX_LISTED + 3))
    assert tools.listed().endswith("t49 and 3 more")
    assert tools.listed().count(",") == MAX_LISTED - 1


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([named("a"), named("b"), named("a")], "two tools are named a"),
        ([named("answer")], "the name is reserved for the end of a task"),
        ([_take], "is not a tool; decorate the function with @tool"),
        ([Foreign(_take)], "tool 'no good': a name has 1 to 128"),
        ([named(f"t{n}") for n in range(MAX_TOOLS + 1)], "more than 512 tools"),
    ],
    ids=["twice", "reserved", "function", "name", "many"],
)
def test_a_set_that_cannot_work_is_refused(tools: list[Any], says: str) -> None:
    with pytest.raises(DefinitionInvalid, match=says):
        Toolset(tools)
