-- Leases the tasks of these ids that can be claimed now. The ids are sorted, which prevents deadlocks; rows that
-- another claim has just taken are judged again when they are free. The state is compared as text, or the planner would
-- walk every due task.
-- Plan: Index Scan using task_identity on task t_1
-- Plan: Index Scan using task_pkey on task t
with chosen as materialized (
  select t.id
  from unnest($1::uuid[]) as wanted (task_id) join {schema}.task t on t.task_id = wanted.task_id
  where t.state::text in ('PENDING', 'ENQUEUED') and not t.blocked and t.scheduled_for <= {schema}.clock()
    and (t.deadline is null or t.deadline > {schema}.clock())
  for update of t)
update {schema}.task t
set state = 'PROCESSING', attempt_count = t.attempt_count + 1, lease_token = $3,
    lease_expires_at = (select {schema}.clock() + $2::bigint * interval '1 microsecond'), worker_id = $4,
    started_at = {schema}.clock(), first_started_at = coalesce(t.first_started_at, {schema}.clock()), progress = null,
    progress_text = null
from chosen
where t.id = chosen.id
returning t.id, t.task_id, t.task_type, t.payload, t.attempt_count, t.max_attempts, t.retry_strategy, t.priority,
          t.ordering_key, t.tags, t.created_at, t.scheduled_for, t.first_started_at, t.started_at, t.deadline
