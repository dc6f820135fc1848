name, definition, version, created_at, paused_at, next_run_at, last_run_at, last_task_id
