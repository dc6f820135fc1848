-- The delivery is taken back, as if it had not been; a strategy counts its time from the first one.
-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
update message
set state = 'PENDING', next_attempt_at = ?2, lease_token = null, acquired_at = null,
    deliveries_count = max(deliveries_count - 1, 0),
    first_attempt_at = case when deliveries_count > 1 then first_attempt_at end,
    last_attempt_at = case when deliveries_count > 1 then last_attempt_at end
where id = ?1
