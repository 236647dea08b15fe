-- Gates: a policy held against the best one that ever served, on held-out tasks.
CREATE TABLE gates (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  name       TEXT    NOT NULL UNIQUE, -- of what holds it, which goes on with it by this name
  candidate  TEXT    NOT NULL, -- policies, by name
  opponent   TEXT    NOT NULL,
  settings   INTEGER NOT NULL REFERENCES texts(id), -- JSON
  decision   TEXT    NOT NULL, -- promoted, refused; empty: it goes on
  detail     INTEGER REFERENCES texts(id), -- JSON: every number behind the decision
  created    INTEGER NOT NULL,
  decided    INTEGER NOT NULL, -- 0 while it goes on
  row_digest BLOB
);

CREATE TABLE gate_tasks (
  gate        INTEGER NOT NULL REFERENCES gates(id),
  place       INTEGER NOT NULL, -- in the order in which they are played, from 0
  fingerprint TEXT    NOT NULL REFERENCES task_gates(fingerprint),
  split       TEXT    NOT NULL, -- compositions, kinds
  unseen      INTEGER NOT NULL, -- 1: it holds a primitive that no training task has
  void        TEXT    NOT NULL, -- why its outcomes do not count; empty: they do
  row_digest  BLOB,
  PRIMARY KEY (gate, place)
) WITHOUT ROWID;
CREATE UNIQUE INDEX gate_tasks_fingerprint ON gate_tasks(fingerprint);

-- What one answer of a player to a task came to.
CREATE TABLE gate_outcomes (
  gate       INTEGER NOT NULL,
  place      INTEGER NOT NULL,
  player     TEXT    NOT NULL, -- candidate, opponent, coder
  sample     INTEGER NOT NULL, -- from 0
  built      INTEGER NOT NULL,
  correct    INTEGER NOT NULL,
  reward     INTEGER NOT NULL, -- -1, 1, 2, 3
  speedup    REAL    NOT NULL, -- against the fastest baseline, eager and compile; 0: not measured
  eager      REAL    NOT NULL,
  compile    REAL    NOT NULL,
  ended      INTEGER NOT NULL,
  row_digest BLOB,
  PRIMARY KEY (gate, place, player, sample),
  FOREIGN KEY (gate, place) REFERENCES gate_tasks(gate, place)
) WITHOUT ROWID;
