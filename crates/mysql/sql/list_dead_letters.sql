-- Without :with_bodies bodies and headers are not read.
select d.death, d.reason, d.error, d.deliveries_count, d.attempts_count,
       timestampdiff(microsecond, '1970-01-01', d.created_at) as created_at,
       timestampdiff(microsecond, '1970-01-01', d.first_attempt_at) as first_attempt_at,
       timestampdiff(microsecond, '1970-01-01', d.last_attempt_at) as last_attempt_at,
       timestampdiff(microsecond, '1970-01-01', d.dead_at) as dead_at,
       d.dedup_key, d.revision, m.message_id, m.priority, m.ordering_key, m.content_type,
       if(:with_bodies, m.headers, '{}') as headers, if(:with_bodies, m.payload, '') as payload,
       timestampdiff(microsecond, '1970-01-01', m.expires_at) as expires_at
from {schema}.dead_letter d force index (dead_letter_queue) join {schema}.message m on m.id = d.id
where d.queue = :queue and d.death > :after and (:reason is null or d.reason = :reason)
order by d.death limit :limit
