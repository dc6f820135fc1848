-- What must be known of a task to end an attempt of it, or the task itself.
-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid=?)
select task_id, task_type, state, priority, ordering_key, attempt_count, max_attempts, worker_id, started_at,
       replay_count, revision, length(payload)
from task where id = ?1
