-- `archive.sql` for messages of one queue without ordering keys that are not dead letters, the common case: they have
-- no message behind them and no record. Token n belongs to row n, as in `remove_plain.sql`.
-- Plan: Index Scan using message_pkey on message m
with lock_wait as materialized (select set_config('lock_timeout', '200ms', true)),
gone as (
  delete from {schema}.message m
  using lock_wait
  where m.id = any ($1::bigint[]) and m.lease_token = ($2::bigint[])[width_bucket(m.id, $1::bigint[])]
    and m.queue || '' = $3 and m.next_attempt_at > {schema}.clock()
  returning m.id, m.queue, m.priority, m.deliveries_count, m.attempts_count, m.created_at, m.first_attempt_at,
            m.last_attempt_at, m.message_id, m.content_type, m.headers, m.last_error, m.payload)
insert into {schema}.message_archive (id, queue, state, priority, deliveries_count, attempts_count, created_at,
                                      first_attempt_at, last_attempt_at, archived_at, message_id, content_type, headers,
                                      last_error, payload)
select id, queue, 'COMPLETED', priority, deliveries_count, attempts_count, created_at, first_attempt_at,
       last_attempt_at, {schema}.clock(), message_id, content_type, headers, last_error, payload
from gone
returning id, false as is_keyed
