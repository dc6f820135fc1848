id, message_id, content_type, headers, ordering_key, priority, deliveries_count, attempts_count,
       timestampdiff(microsecond, '1970-01-01', created_at) as created_at,
       timestampdiff(microsecond, '1970-01-01', first_attempt_at) as first_attempt_at,
       timestampdiff(microsecond, '1970-01-01', expires_at) as expires_at, dedup_key, payload,
       timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) as server_time,
       timestampdiff(microsecond, '1970-01-01', next_attempt_at) as due
