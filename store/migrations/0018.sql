-- Pipelines of training, and every attempt at one of their stages. A pipeline whose
-- finished is 0 has not come to its end. An attempt: settings, inputs and budget are
-- JSON, and so are outputs, which a stage that is finished has; attempt counts from 1,
-- starts how often it was begun or gone on with; ended is 0 while it runs; seconds and
-- verdicts are of all starts; exit is its program's, null where none ended; reason says
-- why it is not done, or was skipped. (The file keeps what stands in a table: a small
-- schema is easier to salvage.)
CREATE TABLE pipelines (
  id INTEGER PRIMARY KEY AUTOINCREMENT, settings INTEGER NOT NULL REFERENCES texts(id), created INTEGER NOT NULL, finished INTEGER NOT NULL, row_digest BLOB
);

CREATE TABLE stages (
  pipeline INTEGER NOT NULL REFERENCES pipelines(id), stage TEXT NOT NULL, attempt INTEGER NOT NULL, status TEXT NOT NULL,
  inputs INTEGER NOT NULL REFERENCES texts(id), budget INTEGER NOT NULL REFERENCES texts(id), outputs INTEGER REFERENCES texts(id),
  begun INTEGER NOT NULL, ended INTEGER NOT NULL, starts INTEGER NOT NULL, seconds REAL NOT NULL, verdicts INTEGER NOT NULL, exit INTEGER,
  reason TEXT NOT NULL, hint TEXT NOT NULL, row_digest BLOB,
  PRIMARY KEY (pipeline, stage, attempt)
) WITHOUT ROWID;
