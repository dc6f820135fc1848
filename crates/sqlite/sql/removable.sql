-- Returns the row if it still is the message that was chosen for removal, and is not leased if ?4 is set.
-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
select ordering_key from message
where id = ?1 and queue = ?2 and cast(message_id as blob) = ?3
  and (?4 is null or lease_token is null or next_attempt_at <= ?4)
