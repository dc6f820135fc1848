-- Plan: Index Scan using dead_letter_queue on dead_letter d
-- Plan: Index Scan using message_pkey on message m
-- Without $5 bodies and headers are not read.
select d.death, d.id, d.reason, d.error, d.deliveries_count, d.attempts_count, d.created_at, d.first_attempt_at,
       d.last_attempt_at, d.dead_at, d.dedup_key, d.revision, m.message_id, m.priority, m.ordering_key,
       m.content_type, case when $5::boolean then m.headers::text else '{}' end as headers,
       case when $5 then m.payload else ''::bytea end as payload, m.expires_at
from {schema}.dead_letter d join {schema}.message m on m.id = d.id
where d.queue = $1 and d.death > $2 and ($3::text is null or d.reason = $3)
order by d.death limit $4
