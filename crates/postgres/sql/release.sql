-- Takes the delivery back. A retry strategy counts its time from the first delivery.
-- Plan: Index Scan using message_pkey on message m
with lock_wait as materialized (select set_config('lock_timeout', '200ms', true))
update {schema}.message m
set state = 'PENDING', next_attempt_at = {schema}.clock(), lease_token = null, acquired_at = null,
    deliveries_count = greatest(m.deliveries_count - 1, 0),
    first_attempt_at = case when m.deliveries_count > 1 then m.first_attempt_at end,
    last_attempt_at = case when m.deliveries_count > 1 then m.last_attempt_at end
from lock_wait, unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::text[]) as s (id, lease_token, message_id, queue)
where m.id = s.id and m.lease_token = s.lease_token and m.message_id = s.message_id and m.queue = s.queue
  and m.next_attempt_at > {schema}.clock()
returning m.id, false as is_keyed
