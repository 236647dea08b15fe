-- Nights: training that the daemon begins by itself. due is when the schedule
-- wanted one, until when its hours are over, seen when it was last known to be
-- under way, ended 0 while it is not over; owner is the process that had it last.
-- stop is why it ended: done, hours, gpu_hours, failed, daemon. worked_ms is how long
-- its pipeline was at work, gpu_ms what it used of all GPUs together, yields how
-- often it gave way to a run. pipeline is null where it came to none, decision empty
-- where it came to no gate.
CREATE TABLE nights (
  id INTEGER PRIMARY KEY AUTOINCREMENT, due INTEGER NOT NULL, until INTEGER NOT NULL, begun INTEGER NOT NULL, seen INTEGER NOT NULL, ended INTEGER NOT NULL,
  owner TEXT NOT NULL, stop TEXT NOT NULL, reason TEXT NOT NULL, worked_ms INTEGER NOT NULL, gpu_ms INTEGER NOT NULL, yields INTEGER NOT NULL,
  pipeline INTEGER, decision TEXT NOT NULL, row_digest BLOB
);
-- There is one at a time.
CREATE UNIQUE INDEX nights_open ON nights(ended) WHERE ended = 0;
