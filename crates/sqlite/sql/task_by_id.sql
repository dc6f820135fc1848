-- What a claim of one task asks. The first columns are those of task_due.
-- Plan: SEARCH task USING INDEX task_identity (task_id=?)
select id, task_id, attempt_count, max_attempts, retry_strategy, ordering_key, tags, created_at, scheduled_for,
       first_started_at, deadline, payload, state, blocked, task_type, priority
from task where task_id = ?1
