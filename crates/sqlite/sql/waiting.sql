-- Whether a message is still the one that was found, and whether a worker has it.
-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
select ordering_key, lease_token is not null and next_attempt_at > ?4 from message
where id = ?1 and queue = ?2 and message_id = ?3
