-- Lists of references that were optimised under several configurations.
CREATE TABLE benches (
  id       INTEGER PRIMARY KEY AUTOINCREMENT,
  key      TEXT    NOT NULL, -- the same for the same runs on the same device
  detail   INTEGER NOT NULL REFERENCES texts(id), -- JSON
  created  INTEGER NOT NULL,
  finished INTEGER NOT NULL -- 0 while some run has not ended
);
CREATE INDEX benches_key ON benches(key, id);

CREATE TABLE bench_runs (
  bench         INTEGER NOT NULL REFERENCES benches(id),
  reference     INTEGER NOT NULL, -- both as the bench's detail counts them
  configuration INTEGER NOT NULL,
  seed          INTEGER NOT NULL,
  run           INTEGER NOT NULL REFERENCES runs(id),
  PRIMARY KEY (bench, reference, configuration, seed)
) WITHOUT ROWID;
CREATE INDEX bench_runs_run ON bench_runs(run);
