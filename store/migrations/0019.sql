-- What listeners are told, in order: the last of it (events.go). detail is a JSON
-- object; run is null where it is about none.
CREATE TABLE events (
  id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, kind TEXT NOT NULL, run INTEGER, detail TEXT NOT NULL
);

-- Runs of the queue that somebody holds back: paused, or cancelled where its owner has
-- still to let go of it. Run 0 is the whole queue.
CREATE TABLE holds (
  run INTEGER PRIMARY KEY, wanted TEXT NOT NULL, row_digest BLOB
);

-- What lists are narrowed by, each in the order of the list.
CREATE INDEX runs_device ON runs(device_key, id);
CREATE INDEX rounds_language ON rounds(language);
CREATE INDEX rounds_device ON rounds(device_key);
CREATE INDEX verdicts_status ON verdicts(status);
