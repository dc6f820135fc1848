-- The same for messages without an ordering key that are not dead letters, which is most: nobody waits behind them, and
-- they have no record.
-- Plan: Index Scan using message_pkey on message m
with patience as materialized (select set_config('lock_timeout', '200ms', true)),
gone as (
  delete from {schema}.message m
  using patience, unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::text[]) as s (id, lease_token, message_id, queue)
  where m.id = s.id and m.lease_token = s.lease_token and m.message_id = s.message_id and m.queue = s.queue
    and m.next_attempt_at > {schema}.clock()
  returning m.id, m.queue, m.priority, m.deliveries_count, m.attempts_count, m.created_at, m.first_attempt_at,
            m.last_attempt_at, m.message_id, m.content_type, m.headers, m.last_error, m.payload)
insert into {schema}.message_archive (id, queue, state, priority, deliveries_count, attempts_count, created_at,
                                      first_attempt_at, last_attempt_at, archived_at, message_id, content_type, headers,
                                      last_error, payload)
select id, queue, 'COMPLETED', priority, deliveries_count, attempts_count, created_at, first_attempt_at,
       last_attempt_at, {schema}.clock(), message_id, content_type, headers, last_error, payload
from gone
returning id, false
