-- Takes the stripes, sorted by the caller, and waits a moment for each. They are taken in turn, so that no transaction
-- starves. After the timeout the caller can go on without them.
with lock_wait as materialized (select set_config('lock_timeout', '200ms', true))
select pg_advisory_xact_lock($1, stripe) from lock_wait, unnest($2::int[]) as stripe
