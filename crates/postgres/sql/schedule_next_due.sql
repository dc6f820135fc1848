-- Plan: Index Only Scan using task_schedule_due on task_schedule
select ceil(extract(epoch from min(next_run_at) - {schema}.clock()) * 1000000)::bigint as due_in
from {schema}.task_schedule where paused_at is null and next_run_at is not null
