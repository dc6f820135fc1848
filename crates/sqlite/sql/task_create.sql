-- Inserts nothing if the id or the idempotency key is taken; only then the holder is looked up.
insert into task (task_id, task_type, state, priority, blocked, scheduled_for, max_attempts, created_at, deadline,
                  ordering_key, position, idempotency_key, retry_strategy, tags, schedule, payload)
values (?1, ?2, 'PENDING', ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
on conflict do nothing
