"""An agent is a definition: what it must be, and what makes it another (contract 2.6)."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost import Agent, DefinitionInvalid, Limits, Recovery, ScriptedModel, tool
from fencepost.run.agent import ANSWER_DEFINITION


@tool(effect="read")
async def look(n: int = 0) -> int:
    """See."""
    return n


class Renamed:
    """A tool whose definition has another name."""

    def __init__(self, name: str) -> None:
        self.definition = tool(effect="read", name="x", description="x")(look.function).definition
        self.definition = type(self.definition)(name, "x", "{}")

    def prepare(self, arguments: str, /) -> Any:
        return look.prepare(arguments)


def agent(**changes: Any) -> Agent:
    fields: dict[str, Any] = {"name": "a", "model": ScriptedModel([]), "limits": Limits(3), "tools": (look,)}
    return Agent(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": ""}, "agent name '' must be"),
        ({"name": "two words"}, "agent name 'two words' must be"),
        ({"name": "a\n"}, "must be 1 to 128"),
        ({"answer": "json"}, "answer must be 'text' or 'cited', got 'json'"),
        ({"model": object()}, "model object has no profile and reply"),
        ({"tools": (print,)}, "is not a tool; decorate the function with @tool"),
        ({"tools": (Renamed("no/slash"),)}, "tool name 'no/slash' must be"),
        ({"tools": (Renamed("answer"),), "answer": "cited"}, "'answer' is reserved for cited answers"),
        ({"tools": (look, look)}, "two tools are named 'look'; rename one"),
        ({"limits": Limits(0)}, "limits.steps"),
    ],
)
def test_an_agent_that_cannot_be_run_says_what_to_change(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionInvalid) as caught:
        agent(**changes).check()
    assert said in str(caught.value)


def test_a_good_agent_is_good_again() -> None:
    one = agent()
    one.check()
    one.check()
    agent(tools=(Renamed("answer"),)).check()


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "b"},
        {"instructions": "be exact"},
        {"limits": Limits(4)},
        {"recovery": Recovery.strict()},
        {"answer": "cited"},
        {"tools": ()},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_whatever_a_task_is_defined_with_changes_the_definition(changes: dict[str, Any]) -> None:
    assert agent(**changes).definition != agent().definition
    assert agent(**changes).definition == agent(**changes).definition


def test_model_and_rules_are_no_part_of_the_definition() -> None:
    assert agent(model=ScriptedModel(["another"])).definition == agent().definition


def test_entry_one_holds_the_definition_and_the_prompt() -> None:
    one = agent(instructions="be exact", answer="cited")
    opened = one.opened("do it", "ada", (("team", "red"),))
    assert (opened.prompt, opened.requester, opened.labels) == ("do it", "ada", (("team", "red"),))
    assert (opened.agent, opened.instructions, opened.answer) == ("a", "be exact", "cited")
    assert opened.definition == one.definition
    assert opened.tools == (look.definition, ANSWER_DEFINITION) == one.definitions
    assert opened.model == "scripted"


def test_what_changed_since_a_task_was_opened_is_named() -> None:
    opened = agent().opened("do it", "ada")
    changed = agent(instructions="be quick", limits=Limits(9), tools=(Renamed("look"), Renamed("new")))
    assert changed.changes_from(opened) == ("instructions", "limits", "tool look", "tool new")
    assert agent().changes_from(opened) == ()
