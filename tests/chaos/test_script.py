"""A script of replies is JSON lines or Python; a line that is none is named with its number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fencepost import DefinitionInvalid, Finish, Reply
from fencepost.models.scripted import say
from fencepost.testing.chaos import read_lines, read_script


def test_a_line_is_a_text_or_an_object_with_calls_or_a_cited_answer() -> None:
    text, asked, broken, cited = read_script(
        '"done"\n\n'
        '{"text": "a remark", "calls": [{"name": "look", "arguments": {"a": 1}}, {"name": "b", "id": "mine"}]}\n'
        '{"calls": [{"name": "look", "arguments": "{no json"}], "finish": "length"}\n'
        '{"answer": {"summary": "so", "claims": [{"text": "t", "evidence_id": "ev-1.0", "quote": "q"}]}}\n'
    )
    assert text == "done"
    assert isinstance(asked, Reply)
    assert isinstance(broken, Reply)
    assert isinstance(cited, Reply)
    assert [(c.id, c.name, c.arguments) for c in asked.calls] == [
        ("s2-0", "look", '{"a": 1}'),
        ("mine", "b", "{}"),
    ]
    assert (asked.text, asked.finish) == ("a remark", Finish.TOOL_CALLS)
    assert (broken.calls[0].arguments, broken.finish) == ("{no json", Finish.LENGTH)
    assert cited.calls[0].name == "answer"
    assert '"evidence_ids": ["ev-1.0"]' in cited.calls[0].arguments


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no reply"),
        ('"a"\n{', "line 2 is not JSON"),
        ("[]", "line 1 must be a text or an object"),
        ('{"texts": "a"}', "answer, calls, finish, text"),
        ('{"text": 1}', "text must be a text"),
        ('{"calls": 1}', "calls a list of objects"),
        ('{"calls": [{"arguments": {}}]}', "line 1, call 0 must be an object with name"),
        ('{"calls": [{"name": "a", "id": 1}]}', "id must be a text"),
        ('{"text": "a", "finish": "soon"}', "finish must be one of stop"),
        ('{"answer": "a"}', "answer must be an object with summary and claims"),
    ],
)
def test_a_line_that_is_no_reply_is_refused_with_its_number(text: str, says: str) -> None:
    with pytest.raises(DefinitionInvalid, match=re.escape(says)):
        read_script(text)


def test_a_script_is_a_file_or_a_list_in_python_or_what_a_function_returns(tmp_path: Path) -> None:
    file = tmp_path / "replies.jsonl"
    file.write_text('"from a file"', encoding="utf-8")
    replies = [say("from a list")]
    assert read_lines(str(file), lambda place: None) == ["from a file"]
    assert read_lines("here:replies", lambda place: replies) == replies
    assert read_lines("here:replies", lambda place: lambda: replies) == replies
    with pytest.raises(DefinitionInvalid, match="cannot be read"):
        read_lines(str(tmp_path / "none.jsonl"), lambda place: None)
    with pytest.raises(DefinitionInvalid, match="must be a list of replies"):
        read_lines("here:replies", lambda place: 5)
