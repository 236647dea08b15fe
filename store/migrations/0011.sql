-- Sets of tasks that a policy is trained on or held against, and every draw for
-- one: what was kept, and why the others were not.
CREATE TABLE task_sets (
  id         INTEGER PRIMARY KEY,
  name       TEXT    NOT NULL UNIQUE,
  settings   INTEGER NOT NULL REFERENCES texts(id), -- JSON
  created    INTEGER NOT NULL,
  finished   INTEGER NOT NULL, -- 0: more is to be drawn
  row_digest BLOB
);

CREATE TABLE task_draws (
  set_id      INTEGER NOT NULL REFERENCES task_sets(id),
  idx         INTEGER NOT NULL,
  split       TEXT    NOT NULL, -- "train", "val", "compositions" or "kinds"
  reason      TEXT    NOT NULL, -- why it was not kept; empty: it was
  fingerprint TEXT    NOT NULL, -- of a task that was kept
  source      INTEGER REFERENCES texts(id),
  detail      INTEGER REFERENCES texts(id), -- JSON
  row_digest  BLOB,
  PRIMARY KEY (set_id, idx)
) WITHOUT ROWID;
CREATE INDEX task_draws_fingerprint ON task_draws(fingerprint) WHERE reason = '';
CREATE INDEX task_draws_source ON task_draws(source);
CREATE INDEX task_draws_detail ON task_draws(detail);

-- A task serves one gate.
CREATE TABLE task_gates (
  fingerprint TEXT PRIMARY KEY,
  gate        TEXT    NOT NULL,
  used        INTEGER NOT NULL,
  row_digest  BLOB
) WITHOUT ROWID;
