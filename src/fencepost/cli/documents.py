"""The JSON shapes of `--json`: stable and documented in docs/cli.md.

Rule 1: a field is added, never renamed, removed or given another meaning.
Rule 2: unknown is null, never 0 or ""; times are ISO 8601 in UTC, money is in nano-units, sizes are in bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from fencepost.cli.answers import Question, is_orphaned, is_synthetic
from fencepost.cli.text import iso
from fencepost.core.entries import Answer, Entry, EntryBody, kind_of
from fencepost.core.errors import FencepostError
from fencepost.core.limits import Limits
from fencepost.service.reading import Reading
from fencepost.service.surface import LateRecord, TaskRow, Tombstone


def task_document(row: TaskRow) -> dict[str, Any]:
    """A task without its journal."""
    return {
        "id": row.id,
        "state": row.state.value,
        "waiting_for": row.waiting_for or None,
        "reason": None if row.reason is None else row.reason.value,
        "agent": row.agent,
        "requester": row.requester,
        "prompt": row.prompt,
        "created_at": iso(row.created_at),
        "updated_at": iso(row.updated_at),
        "expires_at": iso(row.expires_at),
        "worker": row.worker or None,
        "lease_until": iso(row.lease_until),
        "orphaned": is_orphaned(row),
        "attempts": row.attempts,
        "entries": row.seq,
        "late": row.late,
        "used": {
            "steps": row.steps,
            "calls": row.calls,
            "tokens": row.tokens,
            "cost_nano": row.cost_nano,
            "seconds": round(row.seconds, 3),
        },
    }


def entry_document(entry: Entry) -> dict[str, Any]:
    """One entry: its envelope, its kind, and its body as it is stored."""
    return {
        "seq": entry.seq,
        "epoch": entry.epoch,
        "at": iso(entry.at),
        "by": entry.by,
        "attempt": entry.attempt,
        "seconds": round(entry.seconds, 3),
        "kind": kind_of(entry.body),
        "body": body_document(entry.body),
    }


def body_document(body: EntryBody) -> Any:
    """The body's fields; those that have their default value are left out."""
    document = json.loads(msgspec.json.encode(body))
    document.pop("type", None)
    return document


def answer_document(answer: Answer | None) -> Any:
    """An answer with its claims, or null."""
    if answer is None:
        return None
    return {
        "summary": answer.summary,
        "evidence_ids": list(answer.evidence_ids),
        "claims": [
            {
                "text": claim.text,
                "evidence_id": claim.evidence_id,
                "pointer": claim.pointer,
                "value": json.loads(bytes(claim.value)) if bytes(claim.value) else None,
                "quote": claim.quote,
            }
            for claim in answer.claims
        ],
    }


def limits_document(limits: Limits | None) -> Any:
    """All limits of a task, or null."""
    return None if limits is None else {name: getattr(limits, name) for name in limits.__struct_fields__}


def question_document(task: str, question: Question) -> dict[str, Any]:
    """An open question with the exact arguments it is about, as text and as a value."""
    ask, call = question.ask, question.call
    return {
        "task": task,
        "call": question.number,
        "about": ask.about,
        "tool": ask.tool,
        "effect": question.effect,
        "arguments": json.loads(call.arguments),
        "arguments_text": call.arguments,
        "digest": ask.digest,
        "reason": call.reason or None,
        "cause": ask.cause or None,
        "rules": ask.rules or None,
        "expires_at": iso(ask.expires_at),
    }


def late_document(record: LateRecord) -> dict[str, Any]:
    """A result that came after its call was closed."""
    return {
        "call": f"{record.step}.{record.position}",
        "start": record.start,
        "epoch": record.epoch,
        "status": record.status,
        "content": record.content,
        "at": iso(record.at),
    }


def reading_document(reading: Reading, questions: Sequence[Question]) -> dict[str, Any]:
    """A task with all of its journal that can be read."""
    opened, stopped = reading.opened, reading.stopped
    return {
        "task": task_document(reading.row),
        "limits": limits_document(None if opened is None else opened.limits),
        "synthetic": is_synthetic(reading.entries),
        "answer": answer_document(None if stopped is None else stopped.answer),
        "partial": stopped is not None and stopped.partial,
        "detail": (stopped.detail or None) if stopped is not None else None,
        "questions": [question_document(reading.row.id, one) for one in questions],
        "entries": [entry_document(entry) for entry in reading.entries],
        "late": [late_document(record) for record in reading.late],
        "damaged": [{"seq": one.seq, "problem": one.problem} for one in reading.damage],
    }


def tombstone_document(stone: Tombstone) -> dict[str, Any]:
    """What is left of a task that was pruned."""
    return {
        "id": stone.id,
        "agent": stone.agent,
        "state": stone.state.value,
        "reason": stone.reason.value,
        "entries": stone.seq,
        "chain": stone.chain,
        "created_at": iso(stone.created_at),
        "ended_at": iso(stone.ended_at),
        "pruned_at": iso(stone.pruned_at),
        "freed_bytes": stone.freed_bytes,
    }


def error_document(error: BaseException, message: str) -> dict[str, Any]:
    """Why a command did not do what it was asked."""
    return {"error": {"code": _error_code(error), "message": message}}


def _error_code(error: BaseException) -> str:
    match error:
        case FencepostError():
            return error.code
        case click.exceptions.Abort() | KeyboardInterrupt():
            return "interrupted"
        case click.ClickException():
            return "usage"
        case OSError() if error.filename is None:
            return "output"
        case _:
            return "internal"
