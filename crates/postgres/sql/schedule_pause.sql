-- Plan: Index Scan using task_schedule_pkey on task_schedule
update {schema}.task_schedule
set paused_at = coalesce(paused_at, {schema}.clock()), version = version + 1
where name = $1 and version = $2
returning version
