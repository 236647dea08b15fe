-- What of tokens_in was written to a provider's cache, which costs more.
ALTER TABLE calls   ADD COLUMN written INTEGER NOT NULL DEFAULT 0;
ALTER TABLE charges ADD COLUMN written INTEGER NOT NULL DEFAULT 0;

-- What was spent since a time, all in the index.
DROP INDEX charges_spent;
CREATE INDEX charges_spent ON charges(ended, model, tokens_in, tokens_out, cached, written, cost_usd, failed, took);
