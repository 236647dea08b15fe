-- Each row carries a digest of its other columns, which `history check` holds it
-- to: a byte that is changed in the file is noticed. Rows from before get theirs
-- here; who writes keeps them up (digest.go). digest_of is the program's own.
-- Texts have their hashes.
CREATE TABLE digests (
  made INTEGER PRIMARY KEY -- when rows from before got their digests; no row: there were none
) WITHOUT ROWID;
INSERT INTO digests (made)
  SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER) WHERE EXISTS (SELECT 1 FROM runs) OR EXISTS (SELECT 1 FROM cache);

ALTER TABLE cache ADD COLUMN row_digest BLOB;
UPDATE cache SET row_digest = digest_of(kind, key, value, created);

ALTER TABLE digests ADD COLUMN row_digest BLOB;
UPDATE digests SET row_digest = digest_of(made);

ALTER TABLE tasks ADD COLUMN row_digest BLOB;
UPDATE tasks SET row_digest = digest_of(fingerprint, name, source, graph, detail, updated);

ALTER TABLE devices ADD COLUMN row_digest BLOB;
UPDATE devices SET row_digest = digest_of(key, name, detail, updated);

ALTER TABLE fences ADD COLUMN row_digest BLOB;
UPDATE fences SET row_digest = digest_of(device, value);

ALTER TABLE runs ADD COLUMN row_digest BLOB;
UPDATE runs SET row_digest = digest_of(id, task, task_name, path, device, device_key, strategy, coder, judge, seed, max_rounds, settings, status, stop, reason, hint, detail, created, started, finished, best, task_source, task_graph, task_detail, device_detail, lessons);

ALTER TABLE verdicts ADD COLUMN row_digest BLOB;
UPDATE verdicts SET row_digest = digest_of(id, text, exported, status, reason, level, candidate_ms, speedup, speedup_low, speedup_high, against, headroom);

ALTER TABLE rounds ADD COLUMN row_digest BLOB;
UPDATE rounds SET row_digest = digest_of(run, idx, task, device_key, standing, ms, candidate, language, origin, note, verdict, started, finished, overhead_ms, digest, parent);

ALTER TABLE feedback ADD COLUMN row_digest BLOB;
UPDATE feedback SET row_digest = digest_of(run, idx, kind, rule, text);

ALTER TABLE certificates ADD COLUMN row_digest BLOB;
UPDATE certificates SET row_digest = digest_of(run, idx, verdict, sha256, created);

ALTER TABLE metric_names ADD COLUMN row_digest BLOB;
UPDATE metric_names SET row_digest = digest_of(id, name);

ALTER TABLE metrics ADD COLUMN row_digest BLOB;
UPDATE metrics SET row_digest = digest_of(run, idx, name, value);

ALTER TABLE files ADD COLUMN row_digest BLOB;
UPDATE files SET row_digest = digest_of(path, hash, size, mtime, fingerprint, run, seen);

ALTER TABLE queue ADD COLUMN row_digest BLOB;
UPDATE queue SET row_digest = digest_of(id, run, priority, state, attempts, available, owner, claimed, created);

ALTER TABLE baselines ADD COLUMN row_digest BLOB;
UPDATE baselines SET row_digest = digest_of(task, device, name, source, detail, added);

ALTER TABLE turns ADD COLUMN row_digest BLOB;
UPDATE turns SET row_digest = digest_of(id, hash, before, role, text, detail, run, round);

ALTER TABLE calls ADD COLUMN row_digest BLOB;
UPDATE calls SET row_digest = digest_of(id, run, round, agent, seq, take, digest, model, turn, request, text, reasoning, reply, tokens, follows, stop, tokens_in, tokens_out, cached, thought, estimated, cost_usd, began, took, written);

ALTER TABLE charges ADD COLUMN row_digest BLOB;
UPDATE charges SET row_digest = digest_of(id, run, round, agent, seq, model, tokens_in, tokens_out, cached, thought, estimated, cost_usd, ended, took, failed, written);

ALTER TABLE benches ADD COLUMN row_digest BLOB;
UPDATE benches SET row_digest = digest_of(id, key, detail, created, finished);

ALTER TABLE bench_runs ADD COLUMN row_digest BLOB;
UPDATE bench_runs SET row_digest = digest_of(bench, reference, configuration, seed, run);

ALTER TABLE lessons ADD COLUMN row_digest BLOB;
UPDATE lessons SET row_digest = digest_of(run, idx, device_key, kinds, rule);
