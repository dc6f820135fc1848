-- The columns that a transition needs.
-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid=?)
select task_id, task_type, state, priority, ordering_key, attempt_count, max_attempts, worker_id, started_at,
       replay_count, revision, length(payload) as payload_bytes
from task where id = ?1
