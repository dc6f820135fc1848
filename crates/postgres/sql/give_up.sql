-- Like leases that run out now: the deliveries stay counted.
-- Plan: Index Scan using message_pkey on message m
update {schema}.message m
set state = 'PENDING', next_attempt_at = {schema}.clock(), lease_token = null, acquired_at = null
from unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::text[]) as s (id, lease_token, message_id, queue)
where m.id = s.id and m.lease_token = s.lease_token and m.message_id = s.message_id and m.queue = s.queue
  and m.next_attempt_at > {schema}.clock()
returning m.id, false
