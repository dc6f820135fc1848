-- Renames the queue of dead-lettered rows and resets their counts and order.
update {schema}.message force index (primary)
set queue = concat(queue, '_dlq'), blocked = false, next_attempt_at = utc_timestamp(6), state = 'PENDING',
    lease_token = null, acquired_at = null, deliveries_count = 0, attempts_count = 0, created_at = utc_timestamp(6),
    first_attempt_at = null, last_attempt_at = null, dedup_key = null, last_error = null
where id in (:ids)
