-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
delete from message where id = ?1
