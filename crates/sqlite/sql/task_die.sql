-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid=?)
update task
set state = 'DEAD', finished_at = ?2, dead_reason = ?3, last_error = ?4, blocked = 0, lease_token = null,
    lease_expires_at = null
where id = ?1
