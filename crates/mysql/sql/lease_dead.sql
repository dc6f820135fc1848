-- Leases messages only to dead-letter them, so uncounted: that needs the key's stripe, whose holder may wait for a row
-- that is locked here.
update {schema}.message force index (primary)
set state = 'PROCESSING', next_attempt_at = :until, lease_token = :lease, acquired_at = :now
where id in (:ids)
