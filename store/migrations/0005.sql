-- Nothing: the version before the next.
SELECT 1;
