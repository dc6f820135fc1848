-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid=?)
update task set state = 'ENQUEUED', enqueued_at = ?2 where id = ?1
