-- Nights: training that the daemon begins by itself.
CREATE TABLE nights (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  due        INTEGER NOT NULL, -- when the schedule wanted it
  until      INTEGER NOT NULL, -- when its hours are over
  begun      INTEGER NOT NULL,
  seen       INTEGER NOT NULL, -- when it was last known to be under way
  ended      INTEGER NOT NULL, -- 0 while it is not over
  owner      TEXT    NOT NULL, -- the process that had it last
  stop       TEXT    NOT NULL, -- why it ended: done, hours, gpu_hours, failed, daemon; empty while it is not over
  reason     TEXT    NOT NULL, -- a sentence, where it did not come to its gate
  worked_ms  INTEGER NOT NULL, -- that its pipeline was at work
  gpu_ms     INTEGER NOT NULL, -- of all its GPUs together
  yields     INTEGER NOT NULL, -- how often it gave way to somebody's run
  pipeline   INTEGER,          -- what it worked on; null: it came to none
  decision   TEXT    NOT NULL, -- of the gate; empty where it came to none
  row_digest BLOB
);
-- There is one at a time.
CREATE UNIQUE INDEX nights_open ON nights(ended) WHERE ended = 0;
