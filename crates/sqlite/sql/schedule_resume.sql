-- Plan: SEARCH task_schedule USING PRIMARY KEY (name=?)
update task_schedule set paused_at = null, next_run_at = ?3, version = version + 1 where name = ?1 and version = ?2
