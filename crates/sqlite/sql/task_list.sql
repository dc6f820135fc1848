-- Tasks, newest first; the caller reads only as many as a page needs.
-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid<?)
select id, task_id, task_type, state, priority, ordering_key, blocked, idempotency_key, tags, schedule, attempt_count,
       max_attempts, retry_strategy, created_at, scheduled_for, deadline, enqueued_at, started_at, finished_at,
       worker_id, lease_expires_at, progress, progress_text, dead_reason, last_error, revision, replay_count
from task where id < ?1 order by id desc limit ?2
