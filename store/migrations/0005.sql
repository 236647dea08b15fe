-- Where a strategy goes on from another round than the one before.
ALTER TABLE rounds ADD COLUMN parent INTEGER;

-- A talk with a model is a path of turns: one that goes on from another shares
-- its beginning with it, whichever call or run it is of.
CREATE TABLE turns (
  id     INTEGER PRIMARY KEY,
  hash   BLOB    NOT NULL UNIQUE, -- SHA-256 of the talk up to and with this turn
  before INTEGER REFERENCES turns(id), -- a smaller id; null: this is the first
  role   TEXT    NOT NULL,
  text   INTEGER NOT NULL REFERENCES texts(id),
  detail INTEGER REFERENCES texts(id), -- the rest, as JSON; null: there is none
  run    INTEGER, -- where it was said first; null: in no run
  round  INTEGER NOT NULL
);
CREATE INDEX turns_before ON turns(before);
CREATE INDEX turns_text   ON turns(text);

-- Every call that a model answered.
CREATE TABLE calls (
  id         INTEGER PRIMARY KEY,
  run        INTEGER REFERENCES runs(id), -- null: of no run, and never recalled
  round      INTEGER NOT NULL,
  agent      TEXT    NOT NULL,
  seq        INTEGER NOT NULL,
  take       INTEGER NOT NULL, -- what was asked under one key is counted from 0
  digest     BLOB    NOT NULL, -- llm.Request.Digest
  model      TEXT    NOT NULL,
  turn       INTEGER REFERENCES turns(id), -- the last message; null: none, or lost
  request    INTEGER REFERENCES texts(id), -- what else was asked, as JSON; null: nothing, or lost
  text       INTEGER REFERENCES texts(id), -- the reply's; null: lost
  reasoning  INTEGER REFERENCES texts(id),
  reply      INTEGER REFERENCES texts(id), -- the rest, as JSON; null: nothing
  tokens     INTEGER REFERENCES texts(id), -- ids and log-probabilities, as JSON
  follows    INTEGER REFERENCES calls(id), -- whose tokens those of the prompt begin with
  stop       TEXT    NOT NULL,
  tokens_in  INTEGER NOT NULL,
  tokens_out INTEGER NOT NULL,
  cached     INTEGER NOT NULL, -- of tokens_in
  thought    INTEGER NOT NULL, -- of tokens_out
  estimated  INTEGER NOT NULL,
  cost_usd   REAL, -- null: the price is not known
  began      INTEGER NOT NULL,
  took       INTEGER NOT NULL,
  UNIQUE (run, round, agent, seq, take)
);
CREATE INDEX calls_turn      ON calls(turn);
CREATE INDEX calls_text      ON calls(text);
CREATE INDEX calls_reasoning ON calls(reasoning) WHERE reasoning IS NOT NULL;
CREATE INDEX calls_reply     ON calls(reply)     WHERE reply IS NOT NULL;
CREATE INDEX calls_follows   ON calls(follows)   WHERE follows IS NOT NULL;

-- Every attempt at a call, answered or not, and what it cost.
CREATE TABLE charges (
  id         INTEGER PRIMARY KEY,
  run        INTEGER REFERENCES runs(id), -- null: of no run
  round      INTEGER NOT NULL,
  agent      TEXT    NOT NULL,
  seq        INTEGER NOT NULL,
  model      TEXT    NOT NULL,
  tokens_in  INTEGER NOT NULL,
  tokens_out INTEGER NOT NULL,
  cached     INTEGER NOT NULL, -- of tokens_in
  thought    INTEGER NOT NULL, -- of tokens_out
  estimated  INTEGER NOT NULL,
  cost_usd   REAL, -- null: the price is not known
  ended      INTEGER NOT NULL,
  took       INTEGER NOT NULL,
  failed     TEXT    NOT NULL -- empty: it was answered
);
CREATE INDEX charges_run ON charges(run);
-- What was spent since a time, all in the index.
CREATE INDEX charges_spent ON charges(ended, model, tokens_in, tokens_out, cost_usd, took);

-- What was said until now: turn by turn, each with the usage of its call.
INSERT INTO turns (id, hash, before, role, text, run, round)
  SELECT n, CAST('message ' || n AS BLOB), CASE WHEN row_number() OVER talk > 1 THEN n - 1 END, role, text, run, idx
  FROM (SELECT *, row_number() OVER (ORDER BY run, idx, agent, seq) AS n FROM messages)
  WINDOW talk AS (PARTITION BY run, idx, agent ORDER BY seq) ORDER BY n;
INSERT INTO calls (run, round, agent, seq, take, digest, model, turn, text, stop, tokens_in, tokens_out, cached, thought, estimated, cost_usd, began, took)
  SELECT m.run, m.idx, m.agent, row_number() OVER (PARTITION BY m.run, m.idx, m.agent ORDER BY m.seq) - 1, 0, zeroblob(32), m.model, t.before, m.text, 'end',
    m.tokens_in, m.tokens_out, 0, 0, 0, m.cost_usd, m.created, 0
  FROM (SELECT *, row_number() OVER (ORDER BY run, idx, agent, seq) AS n FROM messages) m JOIN turns t ON t.id = m.n WHERE m.role = 'assistant' ORDER BY m.n;
INSERT INTO charges (run, round, agent, seq, model, tokens_in, tokens_out, cached, thought, estimated, cost_usd, ended, took, failed)
  SELECT run, round, agent, seq, model, tokens_in, tokens_out, 0, 0, 0, cost_usd, began, 0, '' FROM calls ORDER BY id;
DROP TABLE messages;
