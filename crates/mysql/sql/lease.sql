-- A retry strategy counts its time from the first delivery.
update {schema}.message force index (primary)
set state = 'PROCESSING', next_attempt_at = :until, lease_token = :lease, acquired_at = :now,
    first_attempt_at = coalesce(first_attempt_at, :now), last_attempt_at = :now,
    deliveries_count = deliveries_count + 1
where id in (:ids)
