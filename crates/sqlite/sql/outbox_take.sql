-- Plan: SEARCH outbox USING INTEGER PRIMARY KEY (rowid=?)
update outbox set lease_token = ?2, lease_expires_at = ?3 where id = ?1
