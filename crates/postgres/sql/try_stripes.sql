-- Takes those of the stripes that nobody is busy with, until the end of the transaction. A statement of its own, so that
-- the next one sees what others did before.
select stripe from unnest($2::int[]) as stripe where pg_try_advisory_xact_lock($1, stripe)
