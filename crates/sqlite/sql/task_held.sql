-- Who has a task, and whether its end concerns others.
-- Plan: SEARCH task USING INDEX task_identity (task_id=?)
select id, state, lease_token, lease_expires_at, ordering_key is not null from task where task_id = ?1
