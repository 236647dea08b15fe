-- Search finds the tracebacks of runs, and verdicts that did not certify a round.
CREATE INDEX runs_detail          ON runs(detail) WHERE detail IS NOT NULL;
CREATE INDEX certificates_verdict ON certificates(verdict);
