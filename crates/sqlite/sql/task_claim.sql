-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid=?)
update task
set state = 'PROCESSING', attempt_count = attempt_count + 1, lease_token = ?2, lease_expires_at = ?3, worker_id = ?4,
    started_at = ?5, first_started_at = coalesce(first_started_at, ?5), progress = null, progress_text = null
where id = ?1
