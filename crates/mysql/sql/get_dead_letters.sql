select d.death, d.reason, d.error, d.deliveries_count, d.attempts_count,
       timestampdiff(microsecond, '1970-01-01', d.created_at) as created_at,
       timestampdiff(microsecond, '1970-01-01', d.first_attempt_at) as first_attempt_at,
       timestampdiff(microsecond, '1970-01-01', d.last_attempt_at) as last_attempt_at,
       timestampdiff(microsecond, '1970-01-01', d.dead_at) as dead_at,
       d.dedup_key, d.revision, m.message_id, m.priority, m.ordering_key, m.content_type, m.headers, m.payload,
       timestampdiff(microsecond, '1970-01-01', m.expires_at) as expires_at
from {schema}.dead_letter d force index (dead_letter_message) join {schema}.message m on m.id = d.id
where d.message_id in (:message_ids) and d.queue = :queue and d.death > :after
order by d.death limit :limit
