-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid=?)
update task
set state = 'CANCELED', finished_at = ?2, blocked = 0, lease_token = null, lease_expires_at = null
where id = ?1
