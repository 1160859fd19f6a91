"""JSON Pointer: the examples of RFC 6901, section 5, and what names nothing."""

from __future__ import annotations

import pytest

from fencepost.core.pointer import MAX_LENGTH, MAX_TOKENS, resolve

DOCUMENT = {
    "foo": ["bar", "baz"],
    "": 0,
    "a/b": 1,
    "c%d": 2,
    "e^f": 3,
    "g|h": 4,
    "i\\j": 5,
    'k"l': 6,
    " ": 7,
    "m~n": 8,
    "rows": [{"1": [None, True]}],
    "~1": 9,
}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", DOCUMENT),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
        ("/rows/0/1/1", True),
        ("/rows/0/1/0", None),
        ("/~01", 9),
    ],
)
def test_a_pointer_names_one_place(pointer: str, value: object) -> None:
    assert resolve(DOCUMENT, pointer) == value


@pytest.mark.parametrize(
    "pointer",
    [
        *("/bar", "/foo/2", "/foo/-", "/foo/-1", "/foo/01", "/foo/+1", "/foo/1.0", "/foo/x", "/foo/0/0"),
        *("/foo/٣", "/foo/" + "9" * 30, "//", "/rows/0/1/0/x", "/foo/\ud800"),
    ],
)
def test_what_is_not_there_is_said_to_be_not_there(pointer: str) -> None:
    with pytest.raises(LookupError, match="names nothing") as refusal:
        resolve(DOCUMENT, pointer)
    str(refusal.value).encode()


@pytest.mark.parametrize(
    ("pointer", "says"),
    [
        ("foo", "must be empty or begin with /"),
        ("#/foo", "must be empty or begin with /"),
        ("/m~n", "~ must be written ~0"),
        ("/m~", "~ must be written ~0"),
        ("/" * (MAX_TOKENS + 1), "at most"),
        ("/" + "x" * MAX_LENGTH, "at most"),
    ],
)
def test_what_is_no_pointer_is_refused(pointer: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        resolve(DOCUMENT, pointer)
