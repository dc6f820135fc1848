-- Archives purged dead letters.
insert into {schema}.message_archive (archived_at, id, created_at, first_attempt_at, last_attempt_at, deliveries_count,
                                      attempts_count, message_id, state, priority, queue, ordering_key, content_type,
                                      headers, payload, last_error)
select utc_timestamp(6), m.id, d.created_at, d.first_attempt_at, d.last_attempt_at, d.deliveries_count,
       d.attempts_count, m.message_id, 'FAILED', m.priority, m.queue, m.ordering_key, m.content_type, m.headers,
       m.payload, d.error
from {schema}.dead_letter d join {schema}.message m on m.id = d.id where d.id in (:ids)
