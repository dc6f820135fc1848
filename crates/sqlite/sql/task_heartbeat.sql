-- Plan: SEARCH task USING INDEX task_identity (task_id=?)
update task set lease_expires_at = ?3 where task_id = ?1 and state = 'PROCESSING' and lease_token = ?2
