-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
update message set message_id = ?2 where id = ?1
