-- Returns the row if this lease is valid now. Every settle and extend reads it first.
-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
select ordering_key, attempts_count, last_attempt_at from message
where id = ?1 and queue = ?2 and message_id = ?3 and lease_token = ?4 and next_attempt_at > ?5
