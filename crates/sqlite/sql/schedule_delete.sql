-- Plan: SEARCH task_schedule USING PRIMARY KEY (name=?)
delete from task_schedule where name = ?1
