-- The head of a key stays its head while it waits for its retry.
-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
update message
set state = 'RETRYABLE', next_attempt_at = ?2, lease_token = null, acquired_at = null,
    attempts_count = attempts_count + 1, last_error = coalesce(?3, last_error)
where id = ?1
