-- The same for messages without an ordering key that are not dead letters, which is most: nobody waits behind them, and
-- they have no record.
-- Plan: Index Scan using message_pkey on message m
with patience as materialized (select set_config('lock_timeout', '200ms', true)),
gone as (
  delete from {schema}.message m
  using patience, unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::text[]) as s (id, lease_token, message_id, queue)
  where m.id = s.id and m.lease_token = s.lease_token and m.message_id = s.message_id and m.queue = s.queue
    and m.next_attempt_at > {schema}.clock()
  returning m.id, m.attempts_count, m.message_id),
attempts as (
  delete from {schema}.message_attempt a using gone
  where gone.attempts_count > 0 and a.message_id = gone.message_id)
select id, false from gone
