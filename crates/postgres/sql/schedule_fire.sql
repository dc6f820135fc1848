-- Plan: Index Scan using task_schedule_pkey on task_schedule
update {schema}.task_schedule
set version = version + 1, next_run_at = $2, last_run_at = coalesce($3, last_run_at),
    last_task_id = coalesce($4, last_task_id)
where name = $1
