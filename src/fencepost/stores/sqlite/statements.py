"""Every statement of the store, named and described; none is written anywhere else.

Rule 1: each names the tenant, or a task's `number` that a statement of the same transaction found by tenant.
Rule 2: each write of a task's row states the epoch and seq it is made for: the fence is in the statement.
Rule 3: a heartbeat and a commit that stays RUNNING touch no index.
Rule 4: a statement is run to its end: one that is left half-way makes COMMIT fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apsw

from fencepost.core.errors import StoreCorrupt

# A task's row in the order of ports.TaskRow. The prompt comes from a table of its own.
_ROW = """
  tenant, id, agent, requester, definition, state, seq, epoch, attempts, created_at, updated_at, seconds,
  prompt, waiting_for, reason, tokens, cost_nano, steps, calls, worker, lease_until, not_before, expires_at,
  chain, late
"""
_FROM = "FROM tasks JOIN prompts ON prompts.task = tasks.number"

# --- reads ---------------------------------------------------------------------------------------------

# One task's row.
ROW = f"SELECT {_ROW} {_FROM} WHERE tenant = ? AND id = ?"

# What an append must know of the row before it writes.
HEAD = "SELECT number, state, epoch, seq, chain FROM tasks WHERE tenant = ? AND id = ?"

# A task's number, for statements on its other tables.
NUMBER = "SELECT number FROM tasks WHERE tenant = ? AND id = ?"

# A part of a journal, in order. A negative limit is none.
ENTRIES = """
SELECT e.seq, e.epoch, e.at, e.by, e.attempt, e.commit_id, e.seconds, e.kind, e.v, e.body
FROM tasks JOIN entries AS e ON e.task = tasks.number
WHERE tenant = ? AND id = ? AND e.seq > ? ORDER BY e.seq LIMIT ?
"""

# Who wrote one entry, and when: how a commit whose answer was lost is found again.
COMMIT_AT = """
SELECT e.commit_id, e.at FROM tasks JOIN entries AS e ON e.task = tasks.number
WHERE tenant = ? AND id = ? AND e.seq = ?
"""

# Rows of one tenant, newest first. NULL filters let everything through.
NEWEST = f"""
SELECT {_ROW} {_FROM}
WHERE tenant = :tenant
  AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
  AND (:agent IS NULL OR agent = :agent)
  AND (:before IS NULL OR created_at < :before)
ORDER BY created_at DESC, number DESC LIMIT :limit
"""  # noqa: S608 - put together from the constants above

# Tasks whose question to people has expired, of one tenant or of all; the longest expired first.
EXPIRED = f"""
SELECT {_ROW} {_FROM}
WHERE expires_at IS NOT NULL AND expires_at <= :now AND (:tenant IS NULL OR tenant = :tenant)
ORDER BY expires_at, number LIMIT :limit
"""

# An operation key of a tenant.
OPERATION = "SELECT status, content, task, step, position FROM operations WHERE tenant = ? AND key = ?"

# The whole of a cut value.
ARTIFACT = "SELECT data FROM artifacts WHERE tenant = ? AND digest = ?"

# The same if this task names it; NULL when it does and there is none.
ARTIFACT_OF = """
SELECT a.data FROM tasks JOIN artifact_uses AS u ON u.task = tasks.number
LEFT JOIN artifacts AS a ON a.tenant = tasks.tenant AND a.digest = u.digest
WHERE tasks.tenant = ? AND tasks.id = ? AND u.digest = ?
"""

# The late records of one task, in the order they came.
LATE = """
SELECT l.step, l.position, l.start, l.epoch, l.status, l.content, l.at
FROM tasks JOIN late_records AS l ON l.task = tasks.number
WHERE tenant = ? AND id = ? ORDER BY l.number
"""

# A tenant's acts, newest first.
AUDITED = """
SELECT tenant, by, act, task, outcome, detail, at FROM audit WHERE tenant = ?
ORDER BY number DESC LIMIT ?
"""

# --- opening and claiming ------------------------------------------------------------------------------

# A new task, PENDING at seq 1.
OPEN = """
INSERT INTO tasks (tenant, id, created_at, agent, requester, parent, definition, state, seq, epoch, attempts,
  updated_at, seconds, waiting_for, tokens, cost_nano, steps, calls, worker, chain, late)
VALUES (:tenant, :id, :at, :agent, :requester, :parent, :definition, 'PENDING', 1, 0, 0, :at,
  0.0, '', 0, 0, 0, 0, '', :chain, 0)
RETURNING number
"""
PROMPT = "INSERT INTO prompts (task, prompt) VALUES (?, ?)"

# Who could be claimed, the oldest first, each from a partial index of its own. The caller takes the first that
# `rules.claimable` agrees to; the times here only keep it from looking through tasks that others run.
_CANDIDATE = "SELECT created_at, number, tenant, id, state, not_before, lease_until, worker FROM tasks"
QUEUED = f"""
{_CANDIDATE} INDEXED BY tasks_queued
WHERE state IN ('PENDING', 'READY_TO_RESUME') AND definition = :definition
  AND (:tenant IS NULL OR tenant = :tenant)
  AND (:task IS NULL OR id = :task)
  AND (state != 'READY_TO_RESUME' OR not_before IS NULL OR not_before <= :now)
ORDER BY created_at, number
"""
LEFT_RUNNING = f"""
{_CANDIDATE} INDEXED BY tasks_running
WHERE state = 'RUNNING'
  AND (:tenant IS NULL OR tenant = :tenant)
  AND (:task IS NULL OR id = :task)
  AND (:definitions IS NULL OR definition IN (SELECT value FROM json_each(:definitions)))
  AND (:take_over OR lease_until <= :now)
ORDER BY created_at, number
"""  # noqa: S608 - put together from the constants above

# The next definition in order that something is queued for: one step in the index, however much is queued.
NEXT_DEFINITION = """
SELECT definition FROM tasks INDEXED BY tasks_queued
WHERE state IN ('PENDING', 'READY_TO_RESUME') AND definition > ? ORDER BY definition LIMIT 1
"""

# The same for one task that is named: it is looked up, whatever else is open.
NAMED = """
SELECT created_at, number, tenant, id, state, not_before, lease_until, worker FROM tasks
WHERE tenant = :tenant AND id = :task AND state IN ('PENDING', 'READY_TO_RESUME', 'RUNNING')
  AND (:definitions IS NULL OR definition IN (SELECT value FROM json_each(:definitions)))
"""

# The task is this worker's from here on, and every earlier run of it is fenced.
CLAIM = """
UPDATE tasks SET state = 'RUNNING', epoch = epoch + 1, attempts = attempts + 1, worker = :worker,
  lease_until = :lease_until, not_before = NULL, updated_at = :at
WHERE tenant = :tenant AND id = :task AND state IN ('PENDING', 'READY_TO_RESUME', 'RUNNING')
"""

# --- commits -------------------------------------------------------------------------------------------

# A commit that stays RUNNING. A beat may have counted further than the commit, hence max().
ADVANCE = """
UPDATE tasks SET seq = ?, chain = ?, updated_at = ?, seconds = max(seconds, ?),
  tokens = ?, cost_nano = ?, steps = ?, calls = ?
WHERE tenant = ? AND id = ? AND epoch = ? AND seq = ? AND state = 'RUNNING'
"""

# A commit that changes the state, or that is made while nobody runs the task: it gives the lease back.
MOVE = """
UPDATE tasks SET seq = :seq, chain = :chain, updated_at = :at, seconds = max(seconds, :seconds),
  tokens = :tokens, cost_nano = :cost_nano, steps = :steps, calls = :calls,
  state = :to, epoch = :epoch_after, attempts = coalesce(:attempts, attempts), waiting_for = :waiting_for,
  reason = :reason, expires_at = :expires_at, worker = '', lease_until = NULL, not_before = NULL
WHERE tenant = :tenant AND id = :task AND epoch = :epoch AND seq = :seq_before AND state = :state
"""

# Somebody intervened and the task stays RUNNING: its worker is fenced, and whoever comes next may have it.
FENCE_OFF = """
UPDATE tasks SET epoch = epoch + 1, lease_until = ?
WHERE tenant = ? AND id = ? AND epoch = ? AND state = 'RUNNING'
"""

# An operator accepted a changed definition, in this transaction: claims go by it from here on.
ACCEPT = "UPDATE tasks SET definition = ? WHERE tenant = ? AND id = ?"

# One entry of a task whose row this transaction has just advanced.
ENTRY = """
INSERT INTO entries (task, seq, epoch, at, by, attempt, commit_id, seconds, kind, v, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

# Back to the queue, unharmed.
RELEASE = """
UPDATE tasks SET state = 'READY_TO_RESUME', attempts = 0, worker = '', lease_until = NULL, waiting_for = '',
  expires_at = NULL, not_before = ?, seconds = max(seconds, ?), updated_at = ?
WHERE tenant = ? AND id = ? AND epoch = ? AND state = 'RUNNING'
"""

# A sign of life. A lease for ever stays one.
BEAT = """
UPDATE tasks SET lease_until = CASE WHEN lease_until IS NULL THEN NULL ELSE ? END, seconds = max(seconds, ?)
WHERE tenant = ? AND id = ? AND epoch = ? AND state = 'RUNNING'
"""

# --- beside the journal --------------------------------------------------------------------------------

# An operation key as it is from here on.
HOLD = """
INSERT INTO operations (tenant, key, status, content, task, step, position) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, key) DO UPDATE SET status = excluded.status, content = excluded.content,
  task = excluded.task, step = excluded.step, position = excluded.position
"""

# A whole value, kept once a tenant, and the task that names it.
KEEP = "INSERT INTO artifacts (tenant, digest, data) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
USE = "INSERT INTO artifact_uses (task, digest) VALUES (?, ?) ON CONFLICT DO NOTHING"

# A late record, and its count in the row.
RECORD_LATE = """
INSERT INTO late_records (task, step, position, start, epoch, status, content, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
COUNT_LATE = "UPDATE tasks SET late = late + 1 WHERE tenant = ? AND id = ?"

# An act of a tenant.
AUDIT = "INSERT INTO audit (tenant, by, act, task, outcome, detail, at) VALUES (?, ?, ?, ?, ?, ?, ?)"


# --- retention -----------------------------------------------------------------------------------------

# What is left of a pruned task.
_TOMBSTONE = """
  tenant, id, agent, state, reason, seq, chain, created_at, ended_at, pruned_at, freed_bytes
"""
TOMBSTONE = f"SELECT {_TOMBSTONE} FROM tombstones WHERE tenant = ? AND id = ?"  # noqa: S608 - a constant

# Tasks that are over and that nobody live came from, the longest over first.
OVER = """
SELECT t.number, t.tenant, t.id, t.agent, t.state, t.reason, t.seq, t.chain, t.created_at, t.updated_at
FROM tasks AS t INDEXED BY tasks_over
WHERE t.reason IS NOT NULL AND (:tenant IS NULL OR t.tenant = :tenant)
  AND NOT EXISTS (
    SELECT 1 FROM tasks AS fork
    WHERE fork.tenant = t.tenant AND fork.parent = t.id AND fork.parent != '' AND fork.reason IS NULL
  )
  AND NOT EXISTS (
    SELECT 1 FROM entries AS e
    JOIN tasks AS child ON child.tenant = t.tenant AND child.id = json_extract(CAST(e.body AS TEXT), '$.child')
    WHERE e.task = t.number AND e.kind = 'ChildOpened' AND child.reason IS NULL
  )
ORDER BY t.updated_at, t.number
"""

# The bytes that one task's entries and late records hold.
TASK_BYTES = """
SELECT (SELECT coalesce(sum(length(body)), 0) FROM entries WHERE task = :number)
     + (SELECT coalesce(sum(length(CAST(content AS BLOB))), 0) FROM late_records WHERE task = :number)
"""

# The artifacts a task names, with their sizes and with how many tasks of the tenant name them.
TASK_ARTIFACTS = """
SELECT a.digest, length(a.data), (
    SELECT count(*) FROM artifact_uses AS other JOIN tasks ON tasks.number = other.task
    WHERE other.digest = a.digest AND tasks.tenant = a.tenant
  )
FROM artifact_uses AS mine JOIN artifacts AS a ON a.tenant = :tenant AND a.digest = mine.digest
WHERE mine.task = :number
"""

# What is stored of a tenant, or of all; nothing of a value is read to know its length.
STORED_BYTES = """
SELECT (SELECT coalesce(sum(length(e.body)), 0) FROM tasks JOIN entries AS e ON e.task = tasks.number
        WHERE :tenant IS NULL OR tenant = :tenant)
     + (SELECT coalesce(sum(length(CAST(l.content AS BLOB))), 0)
        FROM tasks JOIN late_records AS l ON l.task = tasks.number WHERE :tenant IS NULL OR tenant = :tenant)
     + (SELECT coalesce(sum(length(data)), 0) FROM artifacts WHERE :tenant IS NULL OR tenant = :tenant)
"""

# A task goes, what refers to it first; what is left of it, and its artifacts that nobody names any more.
DROP = (
    "DELETE FROM artifact_uses WHERE task = ?",
    "DELETE FROM late_records WHERE task = ?",
    "DELETE FROM entries WHERE task = ?",
    "DELETE FROM prompts WHERE task = ?",
    "DELETE FROM tasks WHERE number = ?",
)
FREE = """
DELETE FROM artifacts WHERE tenant = :tenant AND digest = :digest AND NOT EXISTS (
  SELECT 1 FROM artifact_uses JOIN tasks ON tasks.number = artifact_uses.task
  WHERE artifact_uses.digest = :digest AND tasks.tenant = :tenant
)
"""
BURY = f"INSERT INTO tombstones ({_TOMBSTONE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - a constant


def fetch(
    db: apsw.Connection, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()
) -> list[tuple[Any, ...]]:
    """All rows of a statement, which has run to its end; StoreCorrupt when a text in them is none."""
    try:
        return db.execute(statement, values).fetchall()
    except UnicodeDecodeError as why:
        raise StoreCorrupt(f"a text in the file is not UTF-8 ({why}); restore a backup") from None
