-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid=?)
update task set payload = ?2, revision = revision + 1 where id = ?1
