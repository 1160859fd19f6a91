"""JSON Pointer, RFC 6901: one place in a document, and never a search."""

from __future__ import annotations

import re

from fencepost.core.strictjson import named, quoted

# Deeper than any document that is stored (values.MAX_DEPTH) has places.
MAX_TOKENS = 100
# Longer names no place that a person could check.
MAX_LENGTH = 4096

_BAD_ESCAPE = re.compile("~(?![01])")
_INDEX = re.compile("0|[1-9][0-9]{0,17}")


def resolve(document: object, pointer: str) -> object:
    """The value the pointer names; ValueError for a malformed pointer, LookupError when nothing is there.

    `""` is the whole document; `-` (the place after an array's end) never names a value.
    """
    found = document
    for token in _tokens(pointer):
        match found:
            case dict():
                if token not in found:
                    raise LookupError(f"{quoted(pointer)} names nothing: no member {quoted(token)}")
                found = found[token]
            case list() | tuple():
                if not _INDEX.fullmatch(token) or int(token) >= len(found):
                    raise LookupError(
                        f"{quoted(pointer)} names nothing: no index {quoted(token)} in {len(found)} elements"
                    )
                found = found[int(token)]
            case _:
                raise LookupError(
                    f"{quoted(pointer)} names nothing: {quoted(token)} is looked for in {named(found)}"
                )
    return found


def _tokens(pointer: str) -> list[str]:
    if not pointer:
        return []
    if len(pointer) > MAX_LENGTH or pointer.count("/") > MAX_TOKENS:
        raise ValueError(
            f"a JSON pointer of {len(pointer)} characters; at most {MAX_LENGTH}, {MAX_TOKENS} parts"
        )
    if not pointer.startswith("/"):
        raise ValueError(f"{quoted(pointer)} is no JSON pointer: it must be empty or begin with /")
    if _BAD_ESCAPE.search(pointer):
        raise ValueError(f"{quoted(pointer)} is no JSON pointer: ~ must be written ~0")
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/")]
