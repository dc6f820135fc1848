-- Who has these dedup keys, and whether they still live: one that has expired and that nobody handles does not.
-- Plan: Index Scan using message_dedup on message m
select k.queue, k.dedup_key, m.message_id, m.id, m.ordering_key,
       m.expires_at <= {schema}.clock() and not (m.lease_token is not null and m.next_attempt_at > {schema}.clock())
from unnest($1::text[], $2::text[]) as k (queue, dedup_key)
join {schema}.message m on m.queue = k.queue and m.dedup_key = k.dedup_key
