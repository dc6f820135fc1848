-- Returns the row if it still is the message that was found, and whether it is leased.
-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
select ordering_key, lease_token is not null and next_attempt_at > ?4 as is_leased from message
where id = ?1 and queue = ?2 and message_id = ?3
