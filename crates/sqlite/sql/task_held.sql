-- The state and the lease of a task, and whether its end unblocks another task.
-- Plan: SEARCH task USING INDEX task_identity (task_id=?)
select id, state, lease_token, lease_expires_at, ordering_key is not null as has_key from task where task_id = ?1
