-- Plan: SEARCH task USING INDEX task_idempotency (task_type=? AND idempotency_key=?)
select task_id, state from task where task_type = ?1 and idempotency_key = ?2
