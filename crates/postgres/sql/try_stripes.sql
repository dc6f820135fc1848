-- Takes the free stripes until the end of the transaction. A separate statement, so that the next one sees what earlier
-- holders committed.
select stripe from unnest($2::int[]) as stripe where pg_try_advisory_xact_lock($1, stripe)
