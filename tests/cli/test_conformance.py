"""`fencepost conformance` says in one sentence a rule whether a tool or a model keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.cli.exits import Exit
from fencepost.testing.conformance import MODEL_RULES, TOOL_RULES
from tests.cli.conftest import Command

SUBJECTS = Path(__file__).with_name("subjects_for_tests.py")
PROBED = ("--arguments", '{"item": "a"}', "--probe", f"{SUBJECTS}:happened")


def test_a_good_tool_is_told_rule_by_rule_and_ends_with_0(fencepost: Command) -> None:
    done = fencepost("conformance", f"{SUBJECTS}:look")
    assert done.code == Exit.OK, done.err
    for rule in TOOL_RULES:
        assert rule in done.out
    assert "BROKEN" not in done.out
    assert "14 rules for the tool look" in done.out


def test_a_tool_that_forgets_its_key_is_named_and_ends_with_1(fencepost: Command) -> None:
    done = fencepost("conformance", f"{SUBJECTS}:forgets_its_key", *PROBED)
    assert done.code == Exit.FAILED
    assert "BROKEN     key: two starts with the same key made two effects" in done.out


def test_the_probe_sees_the_world_of_the_tool(fencepost: Command) -> None:
    done = fencepost("conformance", f"{SUBJECTS}:keeps_its_key", *PROBED)
    assert done.code == Exit.OK, done.out
    assert "holds      key: two starts with the same key made one effect" in done.out


def test_a_tool_with_an_effect_does_not_run_without_arguments(fencepost: Command) -> None:
    done = fencepost("conformance", f"{SUBJECTS}:forgets_its_key", "--probe", f"{SUBJECTS}:happened")
    assert done.code == Exit.OK
    assert "key, cancel, deadline, late-effects, reconcile: it has an effect, so it runs only" in done.out


def test_a_model_is_checked_by_the_rules_for_models(fencepost: Command) -> None:
    document = fencepost("conformance", f"{SUBJECTS}:model", "--json").document
    assert document["holds"] is True
    assert document["kind"] == "model"
    assert [found["rule"] for found in document["findings"]] == list(MODEL_RULES)
    assert {tuple(found) for found in document["findings"]} == {("rule", "verdict", "said")}


def test_a_model_that_says_nothing_is_broken(fencepost: Command) -> None:
    done = fencepost("conformance", f"{SUBJECTS}:silent")
    assert done.code == Exit.FAILED
    assert "BROKEN     reply: a reply that ended well holds neither words nor calls" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((f"{SUBJECTS}:NUMBER",), "is a int; it must be a tool or model"),
        ((f"{SUBJECTS}:nothing",), "has no attribute 'nothing'"),
        (("look",), "names no tool or model; write module:attribute"),
        ((f"{SUBJECTS}:look", "--arguments", "{"), "it is not JSON"),
        ((f"{SUBJECTS}:look", "--slow", "[]"), "it must be one JSON object"),
        ((f"{SUBJECTS}:look", "--probe", f"{SUBJECTS}:NUMBER"), "cannot be called"),
        ((f"{SUBJECTS}:look", "--cut", f"{SUBJECTS}:model"), "--cut is for models"),
        ((f"{SUBJECTS}:model", "--slow", "{}"), "are for tools"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_checked_is_one_sentence(
    fencepost: Command, words: tuple[str, ...], said: str
) -> None:
    done = fencepost("conformance", *words)
    assert done.code == Exit.USAGE
    assert said in done.err
