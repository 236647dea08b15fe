-- What was asked of models by name of a task, over days that are over: it follows from
-- charge_runs. It took the place of sums that lay in the cache as bytes of their own form.
CREATE TABLE charge_tasks (
  task_name TEXT NOT NULL, day INTEGER NOT NULL, calls INTEGER NOT NULL, tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL, cost_usd REAL NOT NULL, unpriced INTEGER NOT NULL,
  cached INTEGER NOT NULL, written INTEGER NOT NULL, unfinished INTEGER NOT NULL, at_worst INTEGER NOT NULL, usd_at_worst REAL NOT NULL, row_digest BLOB,
  PRIMARY KEY (task_name, day)
) WITHOUT ROWID;
INSERT INTO charge_tasks (task_name, day, calls, tokens_in, tokens_out, cost_usd, unpriced, cached, written, unfinished, at_worst, usd_at_worst)
  SELECT task_name, day, sum(calls), sum(tokens_in), sum(tokens_out), sum(cost_usd), sum(unpriced), sum(cached), sum(written), sum(unfinished), sum(at_worst), sum(usd_at_worst)
  FROM charge_runs GROUP BY 1, 2;
UPDATE charge_tasks SET row_digest = digest_of(task_name, day, calls, tokens_in, tokens_out, cost_usd, unpriced, cached, written, unfinished, at_worst, usd_at_worst);
CREATE INDEX charge_runs_task ON charge_runs(task_name, run);
DELETE FROM cache WHERE kind = 'spent';
