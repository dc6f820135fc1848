-- Whether a message is still the one that was there when its removal began, and may go.
-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
select ordering_key from message
where id = ?1 and queue = ?2 and cast(message_id as blob) = ?3
  and (?4 is null or lease_token is null or next_attempt_at <= ?4)
