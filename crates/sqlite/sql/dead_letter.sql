-- Moves the row to the dead-letter queue: its counts and times start over, and it has no order there.
-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
update message
set queue = ?2, blocked = 0, next_attempt_at = ?3, state = 'PENDING', lease_token = null, acquired_at = null,
    deliveries_count = 0, attempts_count = 0, created_at = ?3, first_attempt_at = null, last_attempt_at = null,
    dedup_key = null, last_error = null
where id = ?1
