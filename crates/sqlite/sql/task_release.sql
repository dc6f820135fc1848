-- Undoes the claim: the attempt before it becomes the last one again.
-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid=?)
-- Plan: SEARCH a USING PRIMARY KEY (id=? AND replay=? AND attempt=?)
update task
set state = ?2, enqueued_at = coalesce(?3, enqueued_at), attempt_count = max(attempt_count - 1, 0),
    first_started_at = case when attempt_count > 1 then first_started_at end,
    (worker_id, started_at) =
      (select a.worker_id, a.started_at from task_attempt a
       where a.id = task.id and a.replay = task.replay_count and a.attempt = task.attempt_count - 1),
    lease_token = null, lease_expires_at = null
where id = ?1
