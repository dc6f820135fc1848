-- Plan: SEARCH task_attempt USING PRIMARY KEY (id=?)
delete from task_attempt where id = ?1
