-- DEAD tasks, CANCELED tasks or both, newest first, without reading other tasks. The columns are those of task_list.
-- Plan: MERGE (UNION ALL)
-- Plan: SEARCH task USING INDEX task_ended (state=? AND id<?)
select id, task_id, task_type, state, priority, ordering_key, blocked, idempotency_key, tags, schedule, attempt_count,
       max_attempts, retry_strategy, created_at, scheduled_for, deadline, enqueued_at, started_at, finished_at,
       worker_id, lease_expires_at, progress, progress_text, dead_reason, last_error, revision, replay_count
from task where state in ('DEAD', 'CANCELED') and state = 'DEAD' and id < ?1 and ?3
union all
select id, task_id, task_type, state, priority, ordering_key, blocked, idempotency_key, tags, schedule, attempt_count,
       max_attempts, retry_strategy, created_at, scheduled_for, deadline, enqueued_at, started_at, finished_at,
       worker_id, lease_expires_at, progress, progress_text, dead_reason, last_error, revision, replay_count
from task where state in ('DEAD', 'CANCELED') and state = 'CANCELED' and id < ?1 and ?4
order by id desc limit ?2
