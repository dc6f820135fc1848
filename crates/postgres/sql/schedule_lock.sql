-- Locks a schedule that is unchanged since it was read.
-- Plan: Index Scan using task_schedule_pkey on task_schedule
select version from {schema}.task_schedule where name = $1 and version = $2 and paused_at is null for update
