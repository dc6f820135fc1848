-- By the primary key.
select message_id, content_type, headers, ordering_key, priority, state = 'FAILED', payload, deliveries_count,
       attempts_count, timestampdiff(microsecond, '1970-01-01', created_at),
       timestampdiff(microsecond, '1970-01-01', first_attempt_at), timestampdiff(microsecond, '1970-01-01', last_attempt_at),
       timestampdiff(microsecond, '1970-01-01', archived_at), last_error
from {schema}.message_archive force index (primary) where (archived_at, id) in (:positions)
order by archived_at desc, id desc
