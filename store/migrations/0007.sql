-- What changes brought, in runs that ended with a certified kernel: where they
-- stand and what they are searched by. The rest is read from the rounds.
CREATE TABLE lessons (
  run        INTEGER NOT NULL,
  idx        INTEGER NOT NULL, -- of the round with the change
  device_key TEXT    NOT NULL, -- the run's
  kinds      TEXT    NOT NULL, -- the task's kinds of operators: sorted, each once, with spaces between
  rule       TEXT    NOT NULL, -- of the built-in Judge that advised it; empty: none did
  PRIMARY KEY (run, idx),
  FOREIGN KEY (run, idx) REFERENCES rounds(run, idx)
) WITHOUT ROWID;
CREATE INDEX lessons_search ON lessons(device_key, kinds, run DESC, idx, rule);

-- The lessons that a run's Judge was given, as JSON.
ALTER TABLE runs ADD COLUMN lessons INTEGER REFERENCES texts(id);

-- Those of the runs until now. operator_kinds is the program's own.
WITH task(text, kinds) AS MATERIALIZED (SELECT id, operator_kinds(body) FROM texts WHERE id IN (SELECT task_detail FROM runs WHERE best IS NOT NULL))
INSERT INTO lessons (run, idx, device_key, kinds, rule)
  SELECT r.run, r.idx, r.device_key, task.kinds, CASE WHEN instr(f.rule, ' (') > 0 THEN substr(f.rule, 1, instr(f.rule, ' (') - 1) ELSE coalesce(f.rule, '') END
  FROM runs JOIN task ON task.text = runs.task_detail
    JOIN rounds b ON b.run = runs.id AND b.idx = runs.best AND b.standing = 2
    JOIN rounds r ON r.run = runs.id
    JOIN rounds p ON p.run = r.run AND p.idx = coalesce(r.parent, r.idx - 1) AND p.standing > 0 AND p.candidate <> r.candidate
    LEFT JOIN feedback f ON f.run = p.run AND f.idx = p.idx
  WHERE runs.status = 'done';
