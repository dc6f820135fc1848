-- The holders of these dedup keys, and whether each has expired and is not leased.
-- Plan: Index Scan using message_dedup on message m
select k.queue, k.dedup_key, m.message_id, m.id, m.ordering_key,
       m.expires_at <= {schema}.clock()
         and not (m.lease_token is not null and m.next_attempt_at > {schema}.clock()) as has_expired
from unnest($1::text[], $2::text[]) as k (queue, dedup_key)
join {schema}.message m on m.queue = k.queue and m.dedup_key = k.dedup_key
