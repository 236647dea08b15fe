-- Pipelines of training, and every attempt at one of their stages.
CREATE TABLE pipelines (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  settings   INTEGER NOT NULL REFERENCES texts(id), -- JSON
  created    INTEGER NOT NULL,
  finished   INTEGER NOT NULL, -- 0: it has not come to its end
  row_digest BLOB
);

CREATE TABLE stages (
  pipeline   INTEGER NOT NULL REFERENCES pipelines(id),
  stage      TEXT    NOT NULL, -- "synthesise", "bootstrap", "warmup", ...
  attempt    INTEGER NOT NULL, -- from 1: one that is repeated is another
  status     TEXT    NOT NULL, -- "running", "done", "skipped", "stopped", ...
  inputs     INTEGER NOT NULL REFERENCES texts(id), -- JSON
  budget     INTEGER NOT NULL REFERENCES texts(id), -- JSON
  outputs    INTEGER REFERENCES texts(id),          -- JSON, of one that is finished
  begun      INTEGER NOT NULL,
  ended      INTEGER NOT NULL, -- 0 while it runs
  starts     INTEGER NOT NULL, -- how often it was begun or gone on with
  seconds    REAL    NOT NULL, -- that it worked, in all starts
  verdicts   INTEGER NOT NULL, -- that it asked for
  exit       INTEGER,          -- of its program; null where none ended
  reason     TEXT    NOT NULL, -- why it is not done, or was skipped
  hint       TEXT    NOT NULL,
  row_digest BLOB,
  PRIMARY KEY (pipeline, stage, attempt)
) WITHOUT ROWID;
