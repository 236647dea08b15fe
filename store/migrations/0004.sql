-- Programs that somebody registered as baselines of a task.
CREATE TABLE baselines (
  task   TEXT    NOT NULL, -- fingerprint
  device TEXT    NOT NULL, -- kind: cpu or cuda
  name   TEXT    NOT NULL,
  source INTEGER NOT NULL REFERENCES texts(id),
  detail INTEGER NOT NULL REFERENCES texts(id), -- the rest, as JSON
  added  INTEGER NOT NULL,
  PRIMARY KEY (task, device, name)
) WITHOUT ROWID;
