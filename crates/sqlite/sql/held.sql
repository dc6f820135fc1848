-- What every settle and extend asks first: is this the lease that is valid now?
-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
select ordering_key, attempts_count, last_attempt_at from message
where id = ?1 and queue = ?2 and message_id = ?3 and lease_token = ?4 and next_attempt_at > ?5
