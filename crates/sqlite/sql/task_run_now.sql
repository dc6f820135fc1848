-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid=?)
update task set state = 'PENDING', scheduled_for = ?2 where id = ?1
