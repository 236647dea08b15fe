-- Texts that the retention policy has dropped: their body is empty, their hash stays. A
-- row here carries a digest, so that a text whose content is gone is told from a damaged
-- one. bytes is what its body took; at is when.
CREATE TABLE prunings (text INTEGER PRIMARY KEY REFERENCES texts(id), bytes INTEGER NOT NULL, at INTEGER NOT NULL, row_digest BLOB);
