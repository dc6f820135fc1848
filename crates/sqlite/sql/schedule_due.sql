-- Plan: SEARCH task_schedule USING INDEX task_schedule_due (next_run_at>? AND next_run_at<?)
select definition, version, created_at, paused_at, next_run_at, last_run_at, last_task_id
from task_schedule where paused_at is null and next_run_at is not null and next_run_at <= ?1
order by next_run_at limit ?2
