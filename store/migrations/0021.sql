-- What runs are chosen by, in a row as small as can be: `history` and the API look through
-- it, and never through runs, whose rows are wide. All of it follows from other tables
-- (facets.go), whose changes it goes along with. A text is a number of facets; operators
-- are those of the task, in small letters, one a line. result is of a run that is done:
-- faster, no_difference, undecided, not_timed, nothing_faster, not_certified.
CREATE TABLE facets (
  id    INTEGER PRIMARY KEY,
  value TEXT NOT NULL UNIQUE,
  row_digest BLOB
);
CREATE TABLE run_facets (
  run       INTEGER PRIMARY KEY REFERENCES runs(id),
  created   INTEGER NOT NULL,
  day       INTEGER NOT NULL, -- of created, in UTC
  device    INTEGER NOT NULL,
  strategy  INTEGER NOT NULL,
  coder     INTEGER NOT NULL,
  status    INTEGER NOT NULL,
  result    INTEGER, -- null: the run is not done
  language  INTEGER, -- of the best round, null: there is none
  operators INTEGER, -- null: the task is not known
  speedup   REAL,    -- of the best round
  kernels   INTEGER NOT NULL, -- certified ones
  row_digest BLOB
);

INSERT OR IGNORE INTO facets (value)
  SELECT device_key FROM runs UNION SELECT strategy FROM runs UNION SELECT coder FROM runs UNION SELECT status FROM runs
  UNION SELECT language FROM rounds UNION VALUES ('faster'), ('no_difference'), ('undecided'), ('not_timed'), ('nothing_faster'), ('not_certified');
CREATE TEMP TABLE task_facets AS SELECT fingerprint, lower_operators(body) AS operators FROM tasks JOIN texts ON id = detail;
INSERT OR IGNORE INTO facets (value) SELECT operators FROM task_facets;
CREATE UNIQUE INDEX temp.task_facets_task ON task_facets(fingerprint);
INSERT INTO run_facets (run, created, day, device, strategy, coder, status, result, language, operators, speedup, kernels)
  SELECT r.id, r.created, r.created / 86400000, (SELECT id FROM facets WHERE value = r.device_key), (SELECT id FROM facets WHERE value = r.strategy),
    (SELECT id FROM facets WHERE value = r.coder), (SELECT id FROM facets WHERE value = r.status),
    (SELECT id FROM facets WHERE value = CASE WHEN r.status <> 'done' THEN NULL WHEN b.standing IS NOT 2 THEN 'not_certified' ELSE speedup_result(v.speedup, v.speedup_low, v.speedup_high) END),
    (SELECT id FROM facets WHERE value = b.language), (SELECT f.id FROM task_facets t JOIN facets f ON f.value = t.operators WHERE t.fingerprint = r.task), v.speedup,
    (SELECT count(*) FROM certificates WHERE run = r.id AND sha256 <> '')
  FROM runs r LEFT JOIN rounds b ON b.run = r.id AND b.idx = r.best LEFT JOIN certificates c ON c.run = b.run AND c.idx = b.idx AND b.standing = 2
    LEFT JOIN verdicts v ON v.id = coalesce(c.verdict, b.verdict);
DROP TABLE temp.task_facets;
UPDATE facets SET row_digest = digest_of(id, value);
UPDATE run_facets SET row_digest = digest_of(run, created, day, device, strategy, coder, status, result, language, operators, speedup, kernels);
CREATE INDEX run_facets_day       ON run_facets(day, run);
CREATE INDEX run_facets_device    ON run_facets(device, run);
CREATE INDEX run_facets_strategy  ON run_facets(strategy, run);
CREATE INDEX run_facets_coder     ON run_facets(coder, run);
CREATE INDEX run_facets_status    ON run_facets(status, run);
CREATE INDEX run_facets_result    ON run_facets(result, run);
CREATE INDEX run_facets_language  ON run_facets(language, run);
CREATE INDEX run_facets_operators ON run_facets(operators, run);
CREATE INDEX run_facets_speedup   ON run_facets(speedup, run);
CREATE INDEX run_facets_counts    ON run_facets(status, kernels);

-- What else is asked for by two things at once, or counted.
DROP INDEX runs_device;
CREATE INDEX runs_said           ON runs(id, task_name, reason, hint, task) WHERE reason <> '';
CREATE INDEX tasks_name          ON tasks(name, fingerprint);
CREATE INDEX rounds_made         ON rounds(device_key, language);

-- What was asked of models, summed over days that are over, by model and by run: all of it
-- follows from charges (charges.go). Days from the last one here on are not summed yet.
CREATE TABLE charge_days (
  day INTEGER NOT NULL, model TEXT NOT NULL, calls INTEGER NOT NULL, tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL, cost_usd REAL NOT NULL, unpriced INTEGER NOT NULL,
  cached INTEGER NOT NULL, written INTEGER NOT NULL, unfinished INTEGER NOT NULL, at_worst INTEGER NOT NULL, usd_at_worst REAL NOT NULL, row_digest BLOB,
  PRIMARY KEY (day, model)
) WITHOUT ROWID;
CREATE TABLE charge_runs (
  day INTEGER NOT NULL, run INTEGER NOT NULL, task_name TEXT NOT NULL, calls INTEGER NOT NULL, tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL, cost_usd REAL NOT NULL, unpriced INTEGER NOT NULL,
  cached INTEGER NOT NULL, written INTEGER NOT NULL, unfinished INTEGER NOT NULL, at_worst INTEGER NOT NULL, usd_at_worst REAL NOT NULL, row_digest BLOB,
  PRIMARY KEY (day, run)
) WITHOUT ROWID;
INSERT INTO charge_days (day, model, calls, tokens_in, tokens_out, cost_usd, unpriced, cached, written, unfinished, at_worst, usd_at_worst)
  SELECT ended / 86400000, model, count(*), coalesce(sum(tokens_in), 0), coalesce(sum(tokens_out), 0), coalesce(sum(cost_usd), 0.0),
    coalesce(sum(cost_usd IS NULL AND tokens_in + tokens_out > 0), 0), coalesce(sum(cached), 0), coalesce(sum(written), 0), coalesce(sum(failed = 'unfinished'), 0),
    coalesce(sum(failed <> '' AND tokens_in + tokens_out > 0), 0), coalesce(sum(CASE WHEN failed <> '' THEN cost_usd END), 0.0)
  FROM charges WHERE ended < (SELECT max(ended) / 86400000 * 86400000 FROM charges) GROUP BY 1, 2;
UPDATE charge_days SET row_digest = digest_of(day, model, calls, tokens_in, tokens_out, cost_usd, unpriced, cached, written, unfinished, at_worst, usd_at_worst);
INSERT INTO charge_runs (day, run, task_name, calls, tokens_in, tokens_out, cost_usd, unpriced, cached, written, unfinished, at_worst, usd_at_worst)
  SELECT ended / 86400000, run, task_name, count(*), coalesce(sum(tokens_in), 0), coalesce(sum(tokens_out), 0), coalesce(sum(cost_usd), 0.0),
    coalesce(sum(cost_usd IS NULL AND tokens_in + tokens_out > 0), 0), coalesce(sum(cached), 0), coalesce(sum(written), 0), coalesce(sum(failed = 'unfinished'), 0),
    coalesce(sum(failed <> '' AND tokens_in + tokens_out > 0), 0), coalesce(sum(CASE WHEN failed <> '' THEN cost_usd END), 0.0)
  FROM charges JOIN runs ON runs.id = run WHERE ended < (SELECT max(ended) / 86400000 * 86400000 FROM charges) GROUP BY 1, 2;
UPDATE charge_runs SET row_digest = digest_of(day, run, task_name, calls, tokens_in, tokens_out, cost_usd, unpriced, cached, written, unfinished, at_worst, usd_at_worst);
CREATE INDEX charge_runs_run ON charge_runs(run);
