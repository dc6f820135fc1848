-- Plan: Index Scan using task_schedule_pkey on task_schedule
update {schema}.task_schedule
set paused_at = null, next_run_at = $3, version = version + 1
where name = $1 and version = $2
returning version
