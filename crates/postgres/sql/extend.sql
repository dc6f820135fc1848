-- Sets the ends of valid leases.
-- Plan: Index Scan using message_pkey on message m
with lock_wait as materialized (select set_config('lock_timeout', '200ms', true))
update {schema}.message m set next_attempt_at = {schema}.clock() + s.extension * interval '1 microsecond'
from lock_wait, unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::text[], $5::bigint[])
     as s (id, lease_token, message_id, queue, extension)
where m.id = s.id and m.lease_token = s.lease_token and m.message_id = s.message_id and m.queue = s.queue
  and m.next_attempt_at > {schema}.clock()
returning m.id, false as is_keyed
