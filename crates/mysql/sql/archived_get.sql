-- The archived messages at these positions.
select message_id, content_type, headers, ordering_key, priority, state = 'FAILED' as is_failed, payload, deliveries_count,
       attempts_count, timestampdiff(microsecond, '1970-01-01', created_at) as created_at,
       timestampdiff(microsecond, '1970-01-01', first_attempt_at) as first_attempt_at,
       timestampdiff(microsecond, '1970-01-01', last_attempt_at) as last_attempt_at,
       timestampdiff(microsecond, '1970-01-01', archived_at) as at, last_error
from {schema}.message_archive force index (primary) where (archived_at, id) in (:positions)
order by archived_at desc, id desc
