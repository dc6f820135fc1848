-- Undoes the delivery. The first delivery loses its times too, from which a retry strategy counts.
-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
update message
set state = 'PENDING', next_attempt_at = ?2, lease_token = null, acquired_at = null,
    deliveries_count = max(deliveries_count - 1, 0),
    first_attempt_at = case when deliveries_count > 1 then first_attempt_at end,
    last_attempt_at = case when deliveries_count > 1 then last_attempt_at end
where id = ?1
