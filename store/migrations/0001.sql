-- Every text there is, once, compressed. id is what other tables and the
-- full-text index refer to: an implicit rowid would not survive VACUUM.
CREATE TABLE texts (
  id      INTEGER PRIMARY KEY,
  hash    BLOB    NOT NULL UNIQUE, -- SHA-256
  size    INTEGER NOT NULL,        -- bytes, uncompressed
  indexed INTEGER NOT NULL,        -- 1 when texts_fts has it
  body    BLOB    NOT NULL         -- zstd
);

-- Contentless: it holds the index and no second copy of the text. What is
-- indexed may be an extract of the text (a verdict's reason, not its numbers).
CREATE VIRTUAL TABLE texts_fts USING fts5(body, content='', contentless_delete=1, tokenize="unicode61 tokenchars '_'");

CREATE TABLE tasks (
  fingerprint TEXT PRIMARY KEY,
  name        TEXT    NOT NULL,
  source      INTEGER NOT NULL REFERENCES texts(id),
  graph       INTEGER REFERENCES texts(id),
  detail      INTEGER NOT NULL REFERENCES texts(id), -- the rest, as JSON
  updated     INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX tasks_source ON tasks(source);

CREATE TABLE devices (
  key     TEXT PRIMARY KEY,
  name    TEXT    NOT NULL,
  detail  INTEGER NOT NULL REFERENCES texts(id),
  updated INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE fences (
  device TEXT PRIMARY KEY,
  value  INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE runs (
  id            INTEGER PRIMARY KEY AUTOINCREMENT,
  task          TEXT    NOT NULL, -- empty until the reference was read
  task_name     TEXT    NOT NULL,
  path          TEXT    NOT NULL,
  device        TEXT    NOT NULL,
  device_key    TEXT    NOT NULL,
  strategy      TEXT    NOT NULL,
  coder         TEXT    NOT NULL,
  judge         TEXT    NOT NULL,
  seed          INTEGER NOT NULL,
  max_rounds    INTEGER NOT NULL,
  settings      TEXT    NOT NULL,
  status        TEXT    NOT NULL,
  stop          TEXT    NOT NULL,
  reason        TEXT    NOT NULL,
  hint          TEXT    NOT NULL,
  detail        INTEGER REFERENCES texts(id),
  created       INTEGER NOT NULL,
  started       INTEGER NOT NULL,
  finished      INTEGER NOT NULL,
  best          INTEGER, -- index of the best round
  -- The task and the device as this run saw them, so that it replays even
  -- after either was measured again.
  task_source   INTEGER REFERENCES texts(id),
  task_graph    INTEGER REFERENCES texts(id),
  task_detail   INTEGER REFERENCES texts(id),
  device_detail INTEGER REFERENCES texts(id)
);
CREATE INDEX runs_task   ON runs(task, id);
CREATE INDEX runs_name   ON runs(task_name, id);
CREATE INDEX runs_status ON runs(status, id);
CREATE INDEX runs_path   ON runs(path, id);

CREATE TABLE verdicts (
  id            INTEGER PRIMARY KEY,
  text          INTEGER NOT NULL UNIQUE REFERENCES texts(id), -- JSON without the exported file
  exported      INTEGER REFERENCES texts(id),
  status        TEXT    NOT NULL,
  reason        TEXT    NOT NULL,
  level         TEXT    NOT NULL,
  candidate_ms  REAL    NOT NULL,
  speedup       REAL, -- null when not timed
  speedup_low   REAL,
  speedup_high  REAL,
  against       TEXT    NOT NULL,
  headroom      REAL    NOT NULL
);

CREATE TABLE rounds (
  run         INTEGER NOT NULL REFERENCES runs(id),
  idx         INTEGER NOT NULL,
  task        TEXT    NOT NULL, -- the run's, so that one index answers "best"
  device_key  TEXT    NOT NULL,
  standing    INTEGER NOT NULL, -- 2 certified, 1 correct, 0 neither or its certification failed
  ms          REAL    NOT NULL, -- of the certificate, else of the verdict
  candidate   INTEGER NOT NULL REFERENCES texts(id),
  language    TEXT    NOT NULL,
  origin      TEXT    NOT NULL,
  note        TEXT    NOT NULL,
  verdict     INTEGER NOT NULL REFERENCES verdicts(id),
  started     INTEGER NOT NULL,
  finished    INTEGER NOT NULL,
  overhead_ms REAL    NOT NULL,
  digest      BLOB    NOT NULL, -- SHA-256 of the round as it was first recorded
  PRIMARY KEY (run, idx)
) WITHOUT ROWID;
CREATE INDEX rounds_best      ON rounds(task, device_key, standing DESC, ms, run, idx) WHERE standing > 0;
CREATE INDEX rounds_candidate ON rounds(candidate);
CREATE INDEX rounds_verdict   ON rounds(verdict);

CREATE TABLE feedback (
  run  INTEGER NOT NULL,
  idx  INTEGER NOT NULL,
  kind TEXT    NOT NULL,
  rule TEXT    NOT NULL,
  text INTEGER NOT NULL REFERENCES texts(id), -- JSON
  PRIMARY KEY (run, idx),
  FOREIGN KEY (run, idx) REFERENCES rounds(run, idx)
) WITHOUT ROWID;
CREATE INDEX feedback_text ON feedback(text);

CREATE TABLE certificates (
  run     INTEGER NOT NULL,
  idx     INTEGER NOT NULL,
  verdict INTEGER NOT NULL REFERENCES verdicts(id),
  sha256  TEXT    NOT NULL, -- of the exported file; empty where certification failed
  created INTEGER NOT NULL,
  PRIMARY KEY (run, idx),
  FOREIGN KEY (run, idx) REFERENCES rounds(run, idx)
) WITHOUT ROWID;
CREATE INDEX certificates_sha256 ON certificates(sha256);

CREATE TABLE metric_names (
  id   INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE
);
CREATE TABLE metrics (
  run   INTEGER NOT NULL,
  idx   INTEGER NOT NULL,
  name  INTEGER NOT NULL REFERENCES metric_names(id),
  value REAL    NOT NULL,
  PRIMARY KEY (run, idx, name),
  FOREIGN KEY (run, idx) REFERENCES rounds(run, idx)
) WITHOUT ROWID;

CREATE TABLE messages (
  run        INTEGER NOT NULL REFERENCES runs(id),
  idx        INTEGER NOT NULL, -- the round it was for; the round itself is recorded after it
  seq        INTEGER NOT NULL,
  agent      TEXT    NOT NULL, -- "coder" or "judge"
  role       TEXT    NOT NULL,
  model      TEXT    NOT NULL,
  text       INTEGER NOT NULL REFERENCES texts(id),
  tokens_in  INTEGER NOT NULL,
  tokens_out INTEGER NOT NULL,
  cost_usd   REAL    NOT NULL,
  created    INTEGER NOT NULL,
  PRIMARY KEY (run, idx, seq)
) WITHOUT ROWID;

CREATE TABLE cache (
  id      INTEGER PRIMARY KEY,
  kind    TEXT    NOT NULL,
  key     TEXT    NOT NULL,
  value   BLOB    NOT NULL, -- zstd
  created INTEGER NOT NULL,
  UNIQUE (kind, key)
);

CREATE TABLE files (
  path        TEXT PRIMARY KEY,
  hash        TEXT    NOT NULL, -- of the content
  size        INTEGER NOT NULL,
  mtime       INTEGER NOT NULL, -- nanoseconds, as the file system gives it
  fingerprint TEXT    NOT NULL,
  run         INTEGER NOT NULL, -- 0 for none
  seen        INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX files_hash        ON files(hash);
CREATE INDEX files_fingerprint ON files(fingerprint);

CREATE TABLE queue (
  id        INTEGER PRIMARY KEY AUTOINCREMENT,
  run       INTEGER NOT NULL UNIQUE REFERENCES runs(id),
  priority  INTEGER NOT NULL,
  state     TEXT    NOT NULL, -- "waiting" or "claimed"; a finished job is gone
  attempts  INTEGER NOT NULL,
  available INTEGER NOT NULL, -- not before
  owner     TEXT    NOT NULL,
  claimed   INTEGER NOT NULL,
  created   INTEGER NOT NULL
);
CREATE INDEX queue_next ON queue(state, priority DESC, id);
CREATE INDEX messages_text ON messages(text);
