-- Plan: SEARCH outbox USING INTEGER PRIMARY KEY (rowid=?)
delete from outbox where id = ?1 and lease_token = ?2
