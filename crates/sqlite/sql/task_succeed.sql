-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid=?)
update task
set state = 'SUCCEEDED', finished_at = ?2, result = ?3, lease_token = null, lease_expires_at = null
where id = ?1
