-- Takes the delivery back. A retry strategy counts its time from the first delivery. Assignments run from left to
-- right, so the count comes last.
update {schema}.message force index (primary)
set state = 'PENDING', next_attempt_at = utc_timestamp(6), lease_token = null, acquired_at = null,
    first_attempt_at = case when deliveries_count > 1 then first_attempt_at end,
    last_attempt_at = case when deliveries_count > 1 then last_attempt_at end,
    deliveries_count = greatest(deliveries_count - 1, 0)
where id in (:ids)
