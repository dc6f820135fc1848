-- Takes the stripes, sorted by the caller, and waits a moment for each: in turn, so that those who come all the time
-- cannot keep others away for ever. Whoever has waited in vain can go on without.
with patience as materialized (select set_config('lock_timeout', '200ms', true))
select pg_advisory_xact_lock($1, stripe) from patience, unnest($2::int[]) as stripe
