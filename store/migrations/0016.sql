-- Versions of the Coder's weights, and which of them served from when on. The files of a version lie in a folder
-- beside the database.
CREATE TABLE policies (
  version    INTEGER PRIMARY KEY AUTOINCREMENT,
  digest     TEXT    NOT NULL UNIQUE, -- of its files
  base       TEXT    NOT NULL, -- what it was trained from
  license    TEXT    NOT NULL,
  pipeline   INTEGER NOT NULL, -- that made it; 0: a person brought it
  stage      TEXT    NOT NULL,
  bytes      INTEGER NOT NULL,
  files      INTEGER NOT NULL REFERENCES texts(id), -- JSON: name, size and SHA-256 of each
  created    INTEGER NOT NULL,
  removed    INTEGER NOT NULL, -- 0 while its folder is there
  row_digest BLOB
);

-- The last one says what serves.
CREATE TABLE promotions (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  policy     INTEGER NOT NULL REFERENCES policies(version),
  rollback   INTEGER NOT NULL, -- 1: it had served before, and does again
  gate       INTEGER NOT NULL, -- that decided; 0: a person did
  reason     TEXT    NOT NULL,
  created    INTEGER NOT NULL,
  row_digest BLOB
);
CREATE UNIQUE INDEX promotions_gate ON promotions(gate) WHERE gate > 0;
