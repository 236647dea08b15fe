-- What `kernelwright history sql` asks, described in docs/history-sql.md. The names and
-- meanings of columns stay while tables change: a column may be added, none goes. They
-- are views of a connection, not of the file: they may have the names of tables, which
-- they hide, and a file whose schema is small is easier to salvage.
--
-- What is not known is NULL; a time is a text in ISO 8601, in UTC (iso_time); a text is
-- read from where it is kept when a query asks for it (kept_text), and NULL where it was
-- pruned.

CREATE TEMP VIEW runs AS SELECT
  r.id AS run, nullif(r.task, '') AS task, r.task_name, nullif(r.path, '') AS path, nullif(r.device, '') AS device,
  nullif(r.device_key, '') AS device_key, nullif(r.strategy, '') AS strategy, nullif(r.coder, '') AS coder, nullif(r.judge, '') AS judge,
  r.seed, nullif(r.max_rounds, 0) AS max_rounds, nullif(r.settings, '') AS settings, r.status, nullif(r.stop, '') AS stop,
  nullif(r.reason, '') AS reason, nullif(r.hint, '') AS hint,
  iso_time(r.created) AS created, iso_time(r.started) AS started, iso_time(r.finished) AS finished,
  CASE WHEN r.started > 0 AND r.finished > 0 THEN (r.finished - r.started) / 1000.0 END AS took_s,
  r.best AS best_round,
  (SELECT count(*) FROM main.rounds o WHERE o.run = r.id) AS rounds,
  (SELECT lower(hex(t.hash)) FROM main.texts t WHERE t.id = r.task_source) AS reference_sha256,
  (SELECT kept_text(t.body) FROM main.texts t WHERE t.id = r.task_source) AS reference
FROM main.runs r;

CREATE TEMP VIEW rounds AS SELECT
  r.run, r.idx AS round, nullif(r.task, '') AS task, u.task_name, nullif(r.device_key, '') AS device_key,
  CASE r.standing WHEN 2 THEN 'certified' WHEN 1 THEN 'correct' ELSE 'none' END AS standing,
  q.status, nullif(q.reason, '') AS reason,
  nullif(r.ms, 0) AS candidate_ms, v.speedup, v.speedup_low, v.speedup_high, nullif(v.against, '') AS against, nullif(v.headroom, 0) AS headroom,
  nullif(r.language, '') AS language, nullif(r.origin, '') AS origin, nullif(r.note, '') AS note,
  CASE WHEN coalesce(r.parent, r.idx - 1) >= 0 THEN coalesce(r.parent, r.idx - 1) END AS parent,
  iso_time(r.started) AS started, iso_time(r.finished) AS finished,
  CASE WHEN r.started > 0 AND r.finished > 0 THEN (r.finished - r.started) / 1000.0 END AS took_s,
  nullif(r.overhead_ms, 0) AS overhead_ms,
  (SELECT lower(hex(t.hash)) FROM main.texts t WHERE t.id = r.candidate) AS source_sha256,
  (SELECT kept_text(t.body) FROM main.texts t WHERE t.id = r.candidate) AS source
FROM main.rounds r JOIN main.runs u ON u.id = r.run JOIN main.verdicts q ON q.id = r.verdict
  LEFT JOIN main.certificates c ON c.run = r.run AND c.idx = r.idx
  LEFT JOIN main.verdicts v ON v.id = CASE WHEN r.standing = 2 THEN c.verdict ELSE r.verdict END;

CREATE TEMP VIEW verdicts AS SELECT
  o.run, o.round, nullif(v.level, '') AS level, v.status, nullif(v.reason, '') AS reason, nullif(v.candidate_ms, 0) AS candidate_ms,
  v.speedup, v.speedup_low, v.speedup_high, nullif(v.against, '') AS against, nullif(v.headroom, 0) AS headroom,
  iso_time(o.at) AS ended, (SELECT kept_text(t.body) FROM main.texts t WHERE t.id = v.text) AS detail
FROM (SELECT run, idx AS round, verdict, finished AS at FROM main.rounds
  UNION ALL SELECT run, idx, verdict, created FROM main.certificates) o JOIN main.verdicts v ON v.id = o.verdict;

CREATE TEMP VIEW feedback AS SELECT
  f.run, f.idx AS round, f.kind, nullif(f.rule, '') AS rule,
  (SELECT kept_text(t.body) FROM main.texts t WHERE t.id = f.text) AS detail
FROM main.feedback f;

CREATE TEMP VIEW metrics AS SELECT m.run, m.idx AS round, n.name AS metric, m.value
FROM main.metrics m JOIN main.metric_names n ON n.id = m.name;

CREATE TEMP VIEW kernels AS SELECT
  r.run, r.idx AS round, r.task, u.task_name, u.device, r.device_key, nullif(r.language, '') AS language, nullif(r.origin, '') AS origin,
  nullif(r.ms, 0) AS candidate_ms, v.speedup, v.speedup_low, v.speedup_high, nullif(v.against, '') AS against, nullif(v.headroom, 0) AS headroom,
  iso_time(c.created) AS certified, nullif(c.sha256, '') AS file_sha256,
  (SELECT kept_text(t.body) FROM main.texts t WHERE t.id = v.exported) AS file,
  (SELECT kept_text(t.body) FROM main.texts t WHERE t.id = r.candidate) AS source
FROM main.rounds r JOIN main.runs u ON u.id = r.run JOIN main.certificates c ON c.run = r.run AND c.idx = r.idx JOIN main.verdicts v ON v.id = c.verdict
WHERE r.standing = 2;

CREATE TEMP VIEW tasks AS SELECT
  k.fingerprint AS task, k.name AS task_name, iso_time(k.updated) AS updated,
  (SELECT lower(hex(t.hash)) FROM main.texts t WHERE t.id = k.source) AS reference_sha256,
  (SELECT kept_text(t.body) FROM main.texts t WHERE t.id = k.source) AS reference,
  (SELECT kept_text(t.body) FROM main.texts t WHERE t.id = k.detail) AS detail
FROM main.tasks k;

CREATE TEMP VIEW devices AS SELECT d.key AS device_key, d.name, iso_time(d.updated) AS updated,
  (SELECT kept_text(t.body) FROM main.texts t WHERE t.id = d.detail) AS detail
FROM main.devices d;

CREATE TEMP VIEW lessons AS SELECT
  l.run, l.idx AS round, coalesce(r.parent, r.idx - 1) AS from_round, r.task, nullif(l.device_key, '') AS device_key,
  nullif(l.kinds, '') AS operators, nullif(l.rule, '') AS rule, nullif(p.ms, 0) AS from_ms, nullif(r.ms, 0) AS to_ms,
  CASE WHEN r.ms > 0 THEN p.ms / r.ms END AS ratio, nullif(r.note, '') AS tried
FROM main.lessons l JOIN main.rounds r ON r.run = l.run AND r.idx = l.idx
  JOIN main.rounds p ON p.run = r.run AND p.idx = coalesce(r.parent, r.idx - 1);

CREATE TEMP VIEW calls AS SELECT
  c.id AS call, c.run, CASE WHEN c.run IS NOT NULL THEN c.round END AS round, c.agent, c.seq, c.take, c.model, c.stop,
  c.tokens_in, c.cached AS cached_in, c.written AS cache_write, c.tokens_out, c.thought AS thinking_tokens, c.estimated, c.cost_usd AS usd,
  iso_time(c.began) AS began, c.took AS took_ms,
  (SELECT kept_text(t.body) FROM main.texts t WHERE t.id = c.text) AS reply,
  (SELECT kept_text(t.body) FROM main.texts t WHERE t.id = c.reasoning) AS reasoning
FROM main.calls c;

CREATE TEMP VIEW costs AS SELECT
  c.id AS charge, c.run, CASE WHEN c.run IS NOT NULL THEN c.round END AS round, c.agent, c.model, iso_time(c.ended) AS ended,
  substr(iso_time(c.ended), 1, 10) AS day, c.tokens_in, c.cached AS cached_in, c.written AS cache_write, c.tokens_out,
  c.thought AS thinking_tokens, c.estimated, c.cost_usd AS usd, c.took AS took_ms, nullif(c.failed, '') AS failed
FROM main.charges c;

CREATE TEMP VIEW episodes AS SELECT e.run, e.policy, e.rule, e.status, e.reward, nullif(e.reason, '') AS reason, iso_time(e.created) AS created, iso_time(e.ended) AS ended
FROM main.episodes e;

CREATE TEMP VIEW policies AS SELECT
  p.version AS policy, p.digest, nullif(p.base, '') AS base, nullif(p.license, '') AS license, nullif(p.pipeline, 0) AS pipeline, nullif(p.stage, '') AS stage,
  p.bytes, iso_time(p.created) AS created, iso_time(p.removed) AS removed,
  p.version = (SELECT o.policy FROM main.promotions o ORDER BY o.id DESC LIMIT 1) AS serves
FROM main.policies p;

CREATE TEMP VIEW promotions AS SELECT o.id AS promotion, o.policy, o.rollback, nullif(o.gate, 0) AS gate, nullif(o.reason, '') AS reason, iso_time(o.created) AS created
FROM main.promotions o;

CREATE TEMP VIEW gates AS SELECT g.id AS gate, g.name, g.candidate, g.opponent, nullif(g.decision, '') AS decision, iso_time(g.created) AS created, iso_time(g.decided) AS decided,
  (SELECT kept_text(t.body) FROM main.texts t WHERE t.id = g.detail) AS detail
FROM main.gates g;

CREATE TEMP VIEW stages AS SELECT
  s.pipeline, s.stage, s.attempt, s.status, iso_time(s.begun) AS began, iso_time(s.ended) AS ended, s.starts, s.seconds, s.verdicts, s.exit,
  nullif(s.reason, '') AS reason, nullif(s.hint, '') AS hint,
  (SELECT kept_text(t.body) FROM main.texts t WHERE t.id = s.inputs) AS inputs, (SELECT kept_text(t.body) FROM main.texts t WHERE t.id = s.outputs) AS outputs
FROM main.stages s;

CREATE TEMP VIEW nights AS SELECT
  n.id AS night, iso_time(n.due) AS due, iso_time(n.until) AS until, iso_time(n.begun) AS began, iso_time(n.ended) AS ended, nullif(n.stop, '') AS stop,
  nullif(n.reason, '') AS reason, n.worked_ms / 1000.0 AS worked_s, n.gpu_ms / 1000.0 AS gpu_s, n.yields, n.pipeline, nullif(n.decision, '') AS decision
FROM main.nights n;

CREATE TEMP VIEW set_tasks AS SELECT
  s.name AS task_set, d.idx AS draw, d.split, nullif(d.reason, '') AS reason, nullif(d.fingerprint, '') AS task,
  (SELECT kept_text(t.body) FROM main.texts t WHERE t.id = d.source) AS reference
FROM main.task_draws d JOIN main.task_sets s ON s.id = d.set_id;

CREATE TEMP VIEW benches AS SELECT b.bench, b.reference, b.configuration, b.seed, b.run, iso_time(h.created) AS created, iso_time(h.finished) AS finished
FROM main.bench_runs b JOIN main.benches h ON h.id = b.bench;

CREATE TEMP VIEW audits AS SELECT
  a.audit, a.reference, a.candidate, a.claimed, nullif(a.against, '') AS against, v.status, nullif(v.reason, '') AS reason, nullif(v.candidate_ms, 0) AS candidate_ms,
  v.speedup, v.speedup_low, v.speedup_high, nullif(v.against, '') AS measured_against, iso_time(a.judged) AS judged
FROM main.audit_pairs a JOIN main.verdicts v ON v.id = a.verdict;

CREATE TEMP VIEW texts AS SELECT lower(hex(t.hash)) AS sha256, t.size AS bytes, length(t.body) AS packed_bytes, iso_time(p.at) AS pruned
FROM main.texts t LEFT JOIN main.prunings p ON p.text = t.id;
