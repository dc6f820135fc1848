-- Plan: SEARCH task_schedule USING INDEX task_schedule_due (next_run_at>?)
select min(next_run_at) as next_due from task_schedule where paused_at is null and next_run_at is not null
