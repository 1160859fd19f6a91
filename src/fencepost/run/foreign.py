"""Foreign code's exceptions as words and its rules as verdicts: no run dies of what an application brings."""

from __future__ import annotations

from msgspec.structs import replace

from fencepost.core.messages import ToolDefinition
from fencepost.core.values import writable
from fencepost.ports import Authorization, Boundary

# An exception's words are for the journal; longer ones are cut there.
DETAIL_CHARS_MOST = 2000
VERDICTS = frozenset({"allow", "ask", "deny"})


def describe(error: BaseException) -> str:
    """An exception's type and words, bounded, whatever its `__str__` does."""
    words = words_of(error)
    return f"{type(error).__name__}: {words}"[:DETAIL_CHARS_MOST] if words else type(error).__name__


def words_of(error: BaseException) -> str:
    """An exception's words as text every store can hold; "" when it fails to say any."""
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - foreign code: an exception may fail to describe itself
        words = ""
    return writable(words)


def authorized(
    boundary: Boundary, principal: str, definition: ToolDefinition, arguments: str
) -> Authorization:
    """The boundary's word; rules that cannot be applied, or that say something else, deny (contract 4.6)."""
    try:
        said = boundary.authorize(principal, definition, arguments)
        if said.verdict in VERDICTS:
            return said if not said.reason else replace(said, reason=writable(said.reason))
        why = f"the rules said {said.verdict!r}"
    except Exception as error:  # noqa: BLE001 - foreign code: an application may bring its own rules
        why = f"the rules failed with {describe(error)}"
    return Authorization("deny", f"{why}, which allows nothing", boundary.version)


def text_of(value: object, *, otherwise: str = "") -> str:
    """The value if it is text; a model is foreign code and may put anything where a string belongs."""
    return value if isinstance(value, str) else otherwise
