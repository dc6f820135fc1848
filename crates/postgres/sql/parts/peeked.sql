message_id, payload, content_type, headers::text as headers, ordering_key, priority, state = 'RETRYABLE' as is_retryable,
       lease_token is not null as is_leased, deliveries_count, attempts_count, created_at, next_attempt_at, last_error,
       next_attempt_at > {schema}.clock() as is_not_due, id
