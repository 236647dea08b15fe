-- `history best` asks for the tasks and devices of a name, a file or a
-- fingerprint. A popular one has thousands of runs: these indexes let it skip
-- from one pair to the next without reading them.
CREATE INDEX runs_by_name ON runs(task_name, task, device_key, id);
CREATE INDEX runs_by_path ON runs(path, task, device_key, id);
CREATE INDEX runs_by_task ON runs(task, device_key, id);
