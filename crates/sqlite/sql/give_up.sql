-- Ends a lease as if it expired now: the delivery stays counted.
-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
update message set state = 'PENDING', next_attempt_at = ?2, lease_token = null, acquired_at = null where id = ?1
