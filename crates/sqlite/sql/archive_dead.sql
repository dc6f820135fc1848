-- Archives a dead letter with the counts and times that it had when it died.
insert into message_archive (id, queue, state, priority, deliveries_count, attempts_count, created_at,
                             first_attempt_at, last_attempt_at, archived_at, message_id, ordering_key, content_type,
                             headers, last_error, payload)
select m.id, m.queue, 'FAILED', m.priority, d.deliveries_count, d.attempts_count, d.created_at, d.first_attempt_at,
       d.last_attempt_at, ?2, m.message_id, m.ordering_key, m.content_type, m.headers, d.error, m.payload
from message m join dead_letter d on d.id = m.id where m.id = ?1
