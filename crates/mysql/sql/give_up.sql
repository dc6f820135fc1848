-- Ends leases now; the deliveries stay counted.
update {schema}.message force index (primary)
set state = 'PENDING', next_attempt_at = utc_timestamp(6), lease_token = null, acquired_at = null
where id in (:ids)
