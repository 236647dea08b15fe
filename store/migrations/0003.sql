-- What is too old is forgotten by its age. Values may be megabytes: without
-- this index each would be read to see when it was written.
CREATE INDEX cache_by_age ON cache(kind, created);
