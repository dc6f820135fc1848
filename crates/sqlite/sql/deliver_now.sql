-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
update message set next_attempt_at = ?2 where id = ?1 and next_attempt_at > ?2
