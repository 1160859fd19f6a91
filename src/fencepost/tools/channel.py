"""What crosses between a run and the child process of one call: typed, bounded frames over a socket.

Rule 1: a frame is one byte of kind, four of length (big endian), and that many bytes of payload.
Rule 2: each kind has one meaning and one way back; whatever else arrives is no verdict (contract 8.3).
Rule 3: nothing crosses but JSON and text: no object of either side is rebuilt in the other.

    ready      the tool's module is imported, or failed to be; sent once, before anything else
    call       parent to child: a `Request` as JSON
    began      the request was understood and the body starts now; before it nothing has run
    refused    nothing ran; the payload says why
    value      the body returned, and this is its JSON
    text       the body returned a text
    failed     it raised ToolFailed with these words
    unknown    it raised OutcomeUnknown with these words
    raised     it raised something else: the type's name, a NUL, the words
"""

from __future__ import annotations

import enum
import struct
from typing import Any

import msgspec
from msgspec import Struct

from fencepost.ports import CallContext

HEAD = struct.Struct(">cI")
# Arguments are at most 256 KiB (contract 4.2), a context is small; escapes may double both.
MAX_REQUEST = 1024 * 1024
# Bytes of an exception's words and of its type's name; the journal cuts them again.
MAX_WORDS = 8 * 1024
MAX_NAME = 256


class Frame(enum.Enum):
    """The kinds of frames."""

    READY = b"I"
    CALL = b"C"
    BEGAN = b"B"
    REFUSED = b"R"
    VALUE = b"V"
    TEXT = b"T"
    FAILED = b"F"
    UNKNOWN = b"U"
    RAISED = b"E"


class ProcessLimits(Struct, frozen=True, kw_only=True):
    """What the child process of one call may use; bytes and seconds, each above 0.

    `memory_bytes` is address space, `cpu_seconds` processor time and `file_bytes` the size of a file, each of
    every single process of the tree. `output_bytes` is the size of the result; a longer one loses its middle.
    """

    # Room for an interpreter and a few hundred megabytes of data; address space is more than what is used.
    memory_bytes: int = 2 * 1024**3
    # As long as a call may take by default (Limits.tool_seconds).
    cpu_seconds: int = 60
    # Larger than a report, smaller than what fills a disk.
    file_bytes: int = 256 * 1024**2
    # A result is shown cut and kept whole in the store: this is the most that is kept. At most values.MAX_WHOLE.
    output_bytes: int = 16 * 1024**2


class Request(Struct, frozen=True):
    """One call: validated arguments as canonical JSON, who asks, and until when (by the system's monotonic clock)."""

    arguments: str
    context: CallContext | None
    deadline: float
    limits: ProcessLimits


def frame(kind: Frame, payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    return HEAD.pack(kind.value, len(payload)) + payload


def request_frame(request: Request) -> bytes:
    """The frame that asks for one call."""
    return frame(Frame.CALL, msgspec.json.encode(request))


def head_of(head: bytes) -> tuple[Frame, int]:
    """Kind and length of what follows; ValueError when it is no frame of ours."""
    kind, length = HEAD.unpack(head)
    return Frame(kind), length


def words(error: BaseException) -> bytes:
    """An exception's words, bounded, whatever its `__str__` does."""
    try:
        said: Any = str(error)
    except Exception:  # noqa: BLE001 - foreign code: an exception may fail to describe itself
        said = ""
    return bounded(said, MAX_WORDS)


def bounded(text: str, most: int) -> bytes:
    """The text's beginning as UTF-8, at most so many bytes."""
    return str.encode(text[:most], "utf-8", "replace")[:most]


def unraised(error: BaseException) -> bytes:
    """The payload of `raised`: the type's name, a NUL, the words."""
    return bounded(type(error).__name__, MAX_NAME) + b"\0" + words(error)


def named_and_said(payload: bytes) -> str:
    """What `unraised` wrote, as one text."""
    name, _, said = payload.decode("utf-8", "replace").partition("\0")
    return f"{name}: {said}" if said else name
