-- Locks the messages whose leases are valid and that no other transaction has locked.
-- Plan: Index Scan using message_pkey on message m
select m.id
from unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::text[]) as s (id, lease_token, message_id, queue)
join {schema}.message m on m.id = s.id and m.lease_token = s.lease_token and m.message_id = s.message_id
                       and m.queue = s.queue
where m.next_attempt_at > {schema}.clock()
for update of m skip locked
