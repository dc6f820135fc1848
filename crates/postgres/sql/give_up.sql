-- Ends leases now; the deliveries stay counted. Rows that other transactions have locked are left: their leases expire,
-- and the caller gets no result.
-- Plan: Index Scan using message_pkey on message m_1
with free as materialized (
  select m.id
  from unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::text[]) as s (id, lease_token, message_id, queue)
  join {schema}.message m on m.id = s.id and m.lease_token = s.lease_token and m.message_id = s.message_id
                         and m.queue = s.queue
  where m.next_attempt_at > {schema}.clock()
  for update of m skip locked)
update {schema}.message m
set state = 'PENDING', next_attempt_at = {schema}.clock(), lease_token = null, acquired_at = null
from free where m.id = free.id
returning m.id, false as is_keyed
