-- The row that a claim by id needs: the columns of task_due, and those that decide whether it can be claimed.
-- Plan: SEARCH task USING INDEX task_identity (task_id=?)
select id, task_id, attempt_count, max_attempts, retry_strategy, ordering_key, tags, created_at, scheduled_for,
       first_started_at, deadline, payload, state, blocked, task_type, priority
from task where task_id = ?1
