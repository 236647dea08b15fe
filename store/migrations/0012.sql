-- Episodes: runs whose Coder is a policy in training.
CREATE TABLE episodes (
  run     INTEGER PRIMARY KEY REFERENCES runs(id),
  policy  TEXT    NOT NULL, -- its version, as who trains it calls it
  rule    TEXT    NOT NULL, -- what its reward is of: last, best
  status  TEXT    NOT NULL, -- open, done, dropped, expired, given_up, lost
  reward  INTEGER,          -- of one that is done
  reason  TEXT    NOT NULL, -- why it is neither open nor done
  created INTEGER NOT NULL,
  ended   INTEGER NOT NULL, -- 0 while it is open
  place   INTEGER,          -- in the order in which those that are done were done, from 1
  row_digest BLOB
);
CREATE UNIQUE INDEX episodes_place ON episodes(place);
CREATE INDEX episodes_open ON episodes(run) WHERE status = 'open';

-- What is trained on: of an episode that is done, each call of its policy. The ids
-- and log-probabilities of its tokens are the call's.
CREATE TABLE samples (
  run     INTEGER NOT NULL REFERENCES episodes(run),
  idx     INTEGER NOT NULL, -- of the call, from 0
  round   INTEGER NOT NULL, -- which call of the run, with the agent "coder"
  seq     INTEGER NOT NULL,
  context TEXT    NOT NULL, -- whether its prompt goes on from the last one: append, replace
  finish  TEXT    NOT NULL, -- as the sampler said: stop, length, ...
  policy  TEXT    NOT NULL, -- the version that sampled it
  mask    INTEGER REFERENCES texts(id), -- JSON, of the reply's tokens; null: all are the policy's
  row_digest BLOB,
  PRIMARY KEY (run, idx)
) WITHOUT ROWID;
