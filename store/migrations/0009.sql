-- A task's fingerprint groups references, but each text is a program of its own:
-- what is asked for by a name, a file or a fingerprint is told by text as well.
DROP INDEX runs_by_name;
DROP INDEX runs_by_path;
DROP INDEX runs_by_task;
CREATE INDEX runs_by_name ON runs(task_name, task, device_key, task_source, id);
CREATE INDEX runs_by_path ON runs(path, task, device_key, task_source, id);
CREATE INDEX runs_by_task ON runs(task, device_key, task_source, id);
