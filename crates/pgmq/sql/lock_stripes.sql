-- Locks stripes until the end of the transaction. Who sends to a key holds the key's stripe. Sorted by the caller,
-- which prevents deadlocks; a separate statement, so that the next one sees what earlier holders committed.
select pg_advisory_xact_lock($1, stripe) from unnest($2::int[]) as stripe
