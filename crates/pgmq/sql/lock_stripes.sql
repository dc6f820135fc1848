-- Whoever sends to a key holds the key's stripe until the end of the transaction. Sorted by the caller, so that no two
-- wait for each other; a statement of its own, so that the next one sees what others did before.
select pg_advisory_xact_lock($1, stripe) from unnest($2::int[]) as stripe
