-- Tasks and their journals. A row of `tasks` is an index over its journal, plus the lease.
-- Rowid tables throughout: a row of 1,000 bytes would cost an overflow page in a WITHOUT ROWID table.
-- Times are seconds since 1970 by the clock of the host that wrote them; money is integer nano-units.

CREATE TABLE schema_migrations (
  number     INTEGER PRIMARY KEY,
  name       TEXT    NOT NULL,
  sha256     TEXT    NOT NULL,      -- of the migration's file: an edited migration is refused
  applied_at REAL    NOT NULL
) STRICT;

-- The columns up to `definition` never change after the task is opened, the others with its commits.
CREATE TABLE tasks (
  number      INTEGER PRIMARY KEY,  -- order of opening; what the other tables refer to
  tenant      TEXT    NOT NULL,
  id          TEXT    NOT NULL,
  created_at  REAL    NOT NULL,
  agent       TEXT    NOT NULL,
  requester   TEXT    NOT NULL,
  parent      TEXT    NOT NULL,     -- the task it continues, '' for none
  definition  TEXT    NOT NULL,
  state       TEXT    NOT NULL,
  seq         INTEGER NOT NULL,     -- of the last entry
  epoch       INTEGER NOT NULL,     -- the fencing token
  attempts    INTEGER NOT NULL,     -- claims since the last clean release or wait
  updated_at  REAL    NOT NULL,
  seconds     REAL    NOT NULL,     -- task time used
  waiting_for TEXT    NOT NULL,
  reason      TEXT,                 -- why it stopped
  tokens      INTEGER NOT NULL,
  cost_nano   INTEGER,              -- NULL is unknown, not zero
  steps       INTEGER NOT NULL,
  calls       INTEGER NOT NULL,
  worker      TEXT    NOT NULL,
  lease_until REAL,                 -- NULL while RUNNING: a lease for ever
  not_before  REAL,
  expires_at  REAL,
  chain       TEXT    NOT NULL,     -- the hash chain's head at `seq`
  late        INTEGER NOT NULL,
  UNIQUE (tenant, id)
) STRICT;

-- What a claim looks through. Tasks that wait for people, are over or have another definition cost it nothing.
CREATE INDEX tasks_queued ON tasks (definition, created_at) WHERE state IN ('PENDING', 'READY_TO_RESUME');
CREATE INDEX tasks_running ON tasks (created_at) WHERE state = 'RUNNING';
-- What pruning looks through, oldest end first, and who still needs a task that is over.
CREATE INDEX tasks_over ON tasks (updated_at) WHERE reason IS NOT NULL;
CREATE INDEX tasks_of_parent ON tasks (tenant, parent) WHERE parent != '';
CREATE INDEX tasks_expiring ON tasks (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX tasks_newest ON tasks (tenant, created_at);

-- Apart from `tasks`, so that no commit rewrites it.
CREATE TABLE prompts (
  task   INTEGER PRIMARY KEY REFERENCES tasks (number),
  prompt TEXT    NOT NULL
) STRICT;

CREATE TABLE entries (
  task      INTEGER NOT NULL REFERENCES tasks (number),
  seq       INTEGER NOT NULL,
  epoch     INTEGER NOT NULL,
  at        REAL    NOT NULL,
  by        TEXT    NOT NULL,
  attempt   INTEGER NOT NULL,
  commit_id TEXT    NOT NULL,
  seconds   REAL    NOT NULL,
  kind      TEXT    NOT NULL,
  v         INTEGER NOT NULL,
  body      BLOB    NOT NULL,       -- the exact bytes that the chain covers
  PRIMARY KEY (task, seq)
) STRICT;

-- What calls brought after they were closed or their run was fenced. Never part of a journal.
CREATE TABLE late_records (
  number   INTEGER PRIMARY KEY,
  task     INTEGER NOT NULL REFERENCES tasks (number),
  step     INTEGER NOT NULL,
  position INTEGER NOT NULL,
  start    INTEGER NOT NULL,
  epoch    INTEGER NOT NULL,
  status   TEXT    NOT NULL,
  content  TEXT    NOT NULL,
  at       REAL    NOT NULL
) STRICT;
CREATE INDEX late_records_of_task ON late_records (task);

-- Tenant-wide names of effects: one that is started, succeeded or unknown is not run again.
CREATE TABLE operations (
  tenant   TEXT    NOT NULL,
  key      TEXT    NOT NULL,
  status   TEXT    NOT NULL,
  content  TEXT    NOT NULL,
  task     TEXT    NOT NULL,
  step     INTEGER NOT NULL,
  position INTEGER NOT NULL,
  PRIMARY KEY (tenant, key)
) STRICT;

-- Whole values that a journal shows cut; `artifact_uses` says which tasks name them, so that they can be freed.
CREATE TABLE artifacts (
  tenant TEXT NOT NULL,
  digest TEXT NOT NULL,
  data   BLOB NOT NULL,
  PRIMARY KEY (tenant, digest)
) STRICT;
CREATE TABLE artifact_uses (
  task   INTEGER NOT NULL REFERENCES tasks (number),
  digest TEXT    NOT NULL,
  PRIMARY KEY (task, digest)
) STRICT;

CREATE INDEX artifact_uses_of_digest ON artifact_uses (digest);

-- What is left of a task that was pruned.
CREATE TABLE tombstones (
  number      INTEGER PRIMARY KEY,
  tenant      TEXT    NOT NULL,
  id          TEXT    NOT NULL,
  agent       TEXT    NOT NULL,
  state       TEXT    NOT NULL,
  reason      TEXT    NOT NULL,
  seq         INTEGER NOT NULL,
  chain       TEXT    NOT NULL,     -- the head that anybody's copy of the journal must end with
  created_at  REAL    NOT NULL,
  ended_at    REAL    NOT NULL,
  pruned_at   REAL    NOT NULL,
  freed_bytes INTEGER NOT NULL,
  UNIQUE (tenant, id)
) STRICT;

-- Acts that changed no journal.
CREATE TABLE audit (
  number  INTEGER PRIMARY KEY,
  tenant  TEXT NOT NULL,
  by      TEXT NOT NULL,
  act     TEXT NOT NULL,
  task    TEXT NOT NULL,
  outcome TEXT NOT NULL,
  detail  TEXT NOT NULL,
  at      REAL NOT NULL
) STRICT;
CREATE INDEX audit_of_tenant ON audit (tenant, number);
