-- Plan: Index Scan using task_schedule_pkey on task_schedule
select name, definition, version, created_at, paused_at, next_run_at, last_run_at, last_task_id
from {schema}.task_schedule where name = $1
