-- At the tail of its key, and without the deadline that it may have missed.
-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid=?)
update task
set state = 'PENDING', scheduled_for = ?2, attempt_count = 0, replay_count = replay_count + 1, blocked = ?3,
    position = ?4, deadline = null, finished_at = null, dead_reason = null, first_started_at = null, started_at = null,
    worker_id = null, progress = null, progress_text = null
where id = ?1
