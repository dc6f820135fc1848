message_id, payload, content_type, headers, ordering_key, priority, state = 'RETRYABLE' as is_retryable,
       lease_token is not null as is_leased, deliveries_count, attempts_count,
       timestampdiff(microsecond, '1970-01-01', created_at) as created_at,
       timestampdiff(microsecond, '1970-01-01', next_attempt_at) as due, last_error,
       next_attempt_at > utc_timestamp(6) as is_not_due, id
