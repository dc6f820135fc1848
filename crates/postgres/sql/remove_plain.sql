-- `remove.sql` for messages of one queue without ordering keys that are not dead letters, the common case: they have no
-- message behind them and no record. Rows are sorted and unique, so token n belongs to row n; a join of the arrays took
-- half as long again. `|| ''` keeps the planner from walking the queue.
-- Plan: Index Scan using message_pkey on message m
with lock_wait as materialized (select set_config('lock_timeout', '200ms', true)),
gone as (
  delete from {schema}.message m
  using lock_wait
  where m.id = any ($1::bigint[]) and m.lease_token = ($2::bigint[])[width_bucket(m.id, $1::bigint[])]
    and m.queue || '' = $3 and m.next_attempt_at > {schema}.clock()
  returning m.id, m.attempts_count, m.message_id),
attempts as (
  delete from {schema}.failed_attempt a using gone
  where gone.attempts_count > 0 and a.queue = $3 and a.message_id = gone.message_id)
select id, false as is_keyed from gone
