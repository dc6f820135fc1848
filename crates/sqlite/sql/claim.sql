-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
update message
set state = 'PROCESSING', next_attempt_at = ?2, lease_token = ?3, acquired_at = ?4, last_attempt_at = ?4,
    first_attempt_at = coalesce(first_attempt_at, ?4), deliveries_count = deliveries_count + 1
where id = ?1
