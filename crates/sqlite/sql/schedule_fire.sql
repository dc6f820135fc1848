-- Plan: SEARCH task_schedule USING PRIMARY KEY (name=?)
update task_schedule
set version = version + 1, last_run_at = coalesce(?3, last_run_at), next_run_at = ?4,
    last_task_id = coalesce(?5, last_task_id)
where name = ?1 and version = ?2 and paused_at is null
