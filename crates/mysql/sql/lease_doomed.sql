-- Leased only to be buried, so not counted: burying needs the lock of a key, and whoever holds that may wait for a row
-- that is locked here.
update {schema}.message force index (primary) set state = 'PROCESSING', next_attempt_at = :until, lease_token = :lease, acquired_at = :now
where id in (:ids)
