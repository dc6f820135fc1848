-- `+ 0` and `|| ''` keep the planner from walking all dead letters of the queue.
-- Plan: Index Scan using dead_letter_message on dead_letter d
-- Plan: Index Scan using message_pkey on message m
select d.death, d.id, d.reason, d.error, d.deliveries_count, d.attempts_count, d.created_at, d.first_attempt_at,
       d.last_attempt_at, d.dead_at, d.dedup_key, d.revision, m.message_id, m.priority, m.ordering_key,
       m.content_type, m.headers::text as headers, m.payload, m.expires_at
from {schema}.dead_letter d join {schema}.message m on m.id = d.id
where d.message_id = any ($2::uuid[]) and d.queue || '' = $1
  and d.death + 0 > $3
order by d.death + 0 limit $4
