-- The head of a key stays its head until it comes back.
update {schema}.message force index (primary)
set state = 'RETRYABLE',
    next_attempt_at = utc_timestamp(6) + interval (:delays) microsecond,
    lease_token = null, acquired_at = null, attempts_count = attempts_count + 1,
    last_error = coalesce(:errors, last_error)
where id in (:ids)
