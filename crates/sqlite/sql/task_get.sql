-- The columns of task_list, the payload and the result.
-- Plan: SEARCH task USING INDEX task_identity (task_id=?)
select id, task_id, task_type, state, priority, ordering_key, blocked, idempotency_key, tags, schedule, attempt_count,
       max_attempts, retry_strategy, created_at, scheduled_for, deadline, enqueued_at, started_at, finished_at,
       worker_id, lease_expires_at, progress, progress_text, dead_reason, last_error, revision, replay_count, payload,
       result
from task where task_id = ?1
