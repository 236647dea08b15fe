-- What published sets of candidates came to, pair by pair.
CREATE TABLE audits (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  key        TEXT    NOT NULL, -- the same for the same set under the same settings
  detail     INTEGER NOT NULL REFERENCES texts(id), -- JSON
  created    INTEGER NOT NULL,
  finished   INTEGER NOT NULL, -- 0 while it has not come to its end
  row_digest BLOB
);
CREATE INDEX audits_key ON audits(key, id);

CREATE TABLE audit_pairs (
  audit          INTEGER NOT NULL REFERENCES audits(id),
  reference      TEXT    NOT NULL, -- where each was found
  candidate      TEXT    NOT NULL,
  idx            INTEGER NOT NULL, -- in the set
  claimed        REAL,             -- the speedup that it was published with
  against        TEXT    NOT NULL, -- of the claim
  key            TEXT    NOT NULL, -- the same for the same bytes under the same settings; empty where there are none
  reference_text INTEGER REFERENCES texts(id),
  candidate_text INTEGER REFERENCES texts(id),
  verdict        INTEGER NOT NULL REFERENCES verdicts(id),
  judged         INTEGER NOT NULL, -- when the verdict was reached
  pass           INTEGER NOT NULL, -- when the audit was last begun or gone on with
  row_digest     BLOB,
  PRIMARY KEY (audit, reference, candidate)
) WITHOUT ROWID;
CREATE INDEX audit_pairs_key ON audit_pairs(key, judged);
CREATE INDEX audit_pairs_verdict ON audit_pairs(verdict);
