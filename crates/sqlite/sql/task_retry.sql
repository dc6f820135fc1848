-- The head of a key stays its head: it holds the key until it has ended.
-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid=?)
update task
set state = 'ENQUEUED', scheduled_for = ?2, last_error = ?3, enqueued_at = coalesce(?4, enqueued_at),
    lease_token = null, lease_expires_at = null
where id = ?1
