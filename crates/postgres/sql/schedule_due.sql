-- Plan: Index Scan using task_schedule_due on task_schedule
select {schedule}
from {schema}.task_schedule
where paused_at is null and next_run_at is not null and next_run_at <= {schema}.clock()
order by next_run_at limit $1
