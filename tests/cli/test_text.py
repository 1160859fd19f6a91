"""What a terminal would obey, hide or reorder is written out."""

from __future__ import annotations

import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.cli.page import NARROW, Page, line
from fencepost.cli.text import cut, document, is_hidden, shown
from tests.cli.agents_for_tests import HOSTILE
from tests.cli.conftest import Command

HIDDEN = {
    "escape": "\x1b", "bell": "\x07", "delete": "\x7f", "C1 CSI": "\x9b", "C1 OSC": "\x9d", "backspace": "\b",
    "carriage return": "\r", "right-to-left override": "\u202e", "left-to-right isolate": "\u2066",
    "Arabic letter mark": "\u061c", "zero-width space": "\u200b", "zero-width joiner": "\u200d",
    "byte order mark": "\ufeff", "word joiner": "\u2060", "soft hyphen": "\u00ad", "line separator": "\u2028",
    "paragraph separator": "\u2029", "tag letter": "\U000e0041", "cancel tag": "\U000e007f",
    "language tag": "\U000e0001", "variation selector": "\ufe0f", "variation selector 17": "\U000e0100",
    "private use": "\ue000", "unassigned": "\U0003ffff",
    "half of a pair": "\ud83d", "Hangul filler": "\u3164",
    "combining joiner": "\u034f", "empty braille": "\u2800", "Mongolian selector": "\u180b",
}  # fmt: skip


@pytest.mark.parametrize("char", HIDDEN.values(), ids=HIDDEN.keys())
def test_what_has_no_shape_is_written_out_and_means_the_same_in_json(char: str) -> None:
    written = shown(char)
    assert written.isascii()
    assert written.isprintable()
    assert json.loads(f'"{written}"') == char


@pytest.mark.parametrize(
    "text", ["plain", "größer", "日本語", "e\u0301té", "हिन्दी", "a\\u001b", "“quotes” — dashes …", "🙂"]
)
def test_what_has_a_shape_is_shown_as_it_is(text: str) -> None:
    assert shown(text) == text


def test_line_breaks_stay_only_where_lines_are_wanted() -> None:
    assert shown("a\nb\tc") == "a\\nb\\tc"
    assert shown("a\nb\tc", lines=True) == "a\nb\\tc"


def test_a_heap_of_marks_does_not_paint_over_other_lines() -> None:
    assert shown("a" + "\u0301" * 20).count("\u0301") == 4


@given(st.text())
def test_nothing_hidden_is_left_in_any_text(text: str) -> None:
    assert not any(is_hidden(char) for char in shown(text))


@given(st.dictionaries(st.text(), st.text(), max_size=3))
def test_json_arguments_that_were_shown_are_the_same_arguments(arguments: dict[str, str]) -> None:
    unmarked = {
        key: value for key, value in arguments.items() if not any(map(unicodedata.combining, key + value))
    }
    assert json.loads(shown(json.dumps(unmarked, ensure_ascii=False))) == unmarked


@given(st.text(), st.integers(NARROW, 120))
def test_no_page_lets_a_control_character_through(text: str, width: int) -> None:
    for page_width in (None, width):
        stream = io.StringIO()
        Page(stream, width=page_width, color=False).put((line(text, indent=2), line(text, exact=True)))
        assert not any(is_hidden(char) for char in stream.getvalue() if char != "\n")


def test_folded_arguments_lose_no_character() -> None:
    stream = io.StringIO()
    text = '{"a":"' + "two  spaces " * 30 + "\u202e" + '漢字"}'
    Page(stream, width=40, color=False).put((line(text, indent=4, exact=True),))
    rows = stream.getvalue().split("\n")[:-1]
    assert len(rows) > 5
    assert all(len(row) <= 40 for row in rows)
    assert "".join(row.removeprefix("    ") for row in rows) == shown(text)


def test_a_command_to_copy_is_one_line_however_narrow_the_terminal_is() -> None:
    stream = io.StringIO()
    words = "fencepost approvals approve task-0123456789abcdef 1.0 --digest 0123456789abcdef"
    Page(stream, width=40, color=False).line("approve  ", words, whole=True)
    assert stream.getvalue() == f"approve  {words}\n"


def test_a_cut_says_how_much_there_is() -> None:
    assert cut("x" * 10, 10) == "x" * 10
    assert cut("x" * 1500, 3) == "xxx… (1,500 characters)"


def test_a_json_document_is_ascii_without_controls() -> None:
    text = document({"x": HOSTILE + "\x7f"})
    assert text.isascii()
    assert all(char == "\n" or char.isprintable() for char in text)
    assert json.loads(text) == {"x": HOSTILE + "\x7f"}


@pytest.mark.parametrize("command", [("show", "task", "--full"), ("list",), ("watch", "task")])
def test_no_command_obeys_what_tools_models_and_names_say(
    fencepost: Command, command: tuple[str, ...]
) -> None:
    ran = fencepost.run("hostile", prompt=f"evil {HOSTILE}")
    assert ran.code == 0, ran.err
    shown_again = fencepost(*command)
    for text in (ran.out, ran.err, shown_again.out, shown_again.err):
        assert not any(is_hidden(char) for char in text if char != "\n")
    assert "\\u001b]52;c;ZXZpbA==\\u0007\\u009b31m\\u202egnp\\u200b\\udb40\\udc41" in shown_again.out
