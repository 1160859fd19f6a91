"""`read_artifact`: how a model reads the whole of a result that it was shown cut (contract 8.4).

Rule 1: it reads only what results of this very task name; everything else does not exist for it.
Rule 2: a part never outgrows `result_bytes`, so what it returns is never cut again.
Rule 3: bytes that are not those of the digest are not given out.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from fencepost.core.arguments import read_arguments
from fencepost.core.canonical import digest as digest_of
from fencepost.core.eliding import READ_ARTIFACT
from fencepost.core.errors import ArgumentsInvalid, StoreCorrupt, TaskNotFound, ToolFailed
from fencepost.core.messages import Effect, ToolDefinition
from fencepost.ports import CallContext, Prepared, Reconciled, Store

# What stands before a part: two offsets, a size and some words.
HEADER_BYTES_MOST = 120
# Fewer bytes a result would make a model read forever.
RESULT_BYTES_LEAST = 1024
DIGEST = re.compile(r"[0-9a-f]{64}\Z")
SCHEMA = (
    '{"type":"object","properties":{'
    '"digest":{"type":"string","pattern":"^[0-9a-f]{64}$","description":"From the mark in the cut result."},'
    '"offset":{"type":"integer","minimum":0,"description":"The first byte wanted; 0 when left out."},'
    '"limit":{"type":"integer","minimum":1,"description":"How many bytes at most; as many as fit when left out."}'
    '},"required":["digest"],"additionalProperties":false}'
)
DESCRIPTION = "Read a part of a result of this task that was shown cut, by the digest that its mark names."
READ_ARTIFACT_DEFINITION = ToolDefinition(
    READ_ARTIFACT,
    DESCRIPTION,
    SCHEMA,
    effect=Effect.READ,
    parallel=True,
    digest=digest_of(f"{DESCRIPTION}\0{SCHEMA}", "tool"),
)


class Part(Struct, frozen=True, gc=False):
    """What is asked for: bytes of the value with this digest; `limit` None is as many as fit."""

    digest: str
    offset: int
    limit: int | None


class ReadArtifact:
    """The tool; `room` is the bytes one result may have. Without a store it can be described, but not run."""

    definition = READ_ARTIFACT_DEFINITION
    threaded = False

    def __init__(self, room: int, store: Store | None = None) -> None:
        self._room, self._store = room - HEADER_BYTES_MOST, store

    def prepare(self, arguments: str, /) -> Prepared:
        """Validated arguments, or ArgumentsInvalid with words for the model."""
        value, text, digest = read_arguments(arguments)
        unknown = sorted(value.keys() - {"digest", "offset", "limit"})
        if unknown:
            raise ArgumentsInvalid(f"$: there is no argument {unknown[0]!r}; give digest, offset and limit")
        named = value.get("digest")
        if not isinstance(named, str) or not DIGEST.match(named):
            raise ArgumentsInvalid("$.digest: must be the 64 hex digits from the mark of a cut result")
        limit = None if "limit" not in value else _whole_number(value, "limit", least=1)
        offset = 0 if "offset" not in value else _whole_number(value, "offset", least=0)
        return Prepared(READ_ARTIFACT, text, digest, Part(named, offset, limit))

    def operation_key(self, prepared: Prepared, /) -> None:
        """Reading has no effect to name."""

    async def run(self, prepared: Prepared, context: CallContext, /) -> str:
        """The part as text, below a line that says where it is; ToolFailed when there is none."""
        part: Part = prepared.values
        whole = await self._whole(part.digest, context)
        size = len(whole)
        if part.offset >= size:
            raise ToolFailed(f"the value has {size} bytes; there is none at offset {part.offset}")
        begin = _code_point(whole, part.offset, 1)
        end = min(size, begin + min(part.limit or self._room, self._room))
        end = max(_code_point(whole, end, -1), min(size, begin + 1))
        end = _code_point(whole, end, 1)  # a limit below one code point still gives one
        more = "that is the end" if end == size else f"go on at offset {end}"
        return f"[bytes {begin} to {end} of {size}; {more}]\n{whole[begin:end].decode()}"

    async def reconcile(self, prepared: Prepared, context: CallContext, /) -> Reconciled:
        """Nothing to find out: a read is simply made again."""
        return Reconciled("cannot_tell")

    async def _whole(self, digest: str, context: CallContext) -> bytes:
        assert self._store is not None, "a run binds the tool to its store"
        try:
            whole = await self._store.artifact(context.tenant, digest, task=context.task)
        except TaskNotFound:
            raise ToolFailed(
                f"no result of this task has the digest {digest}; copy it from the mark of a cut result"
            ) from None
        except StoreCorrupt as why:
            raise ToolFailed(str(why)) from why
        if digest_of(whole, "result") != digest:
            raise ToolFailed(f"the whole of {digest} was changed in the store; its bytes are not given out")
        return whole


def _whole_number(value: dict[str, Any], name: str, *, least: int) -> int:
    given = value[name]
    if type(given) is not int or given < least:
        raise ArgumentsInvalid(f"$.{name}: must be a whole number, {least} or more")
    return given


def _code_point(data: bytes, at: int, step: int) -> int:
    """The nearest place from `at` in this direction where a code point begins, or an end of the data."""
    while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
        at += step
    return at
