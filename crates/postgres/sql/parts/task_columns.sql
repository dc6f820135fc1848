t.id, t.task_id, t.task_type, t.state::text as state, t.priority, t.ordering_key, t.blocked, t.idempotency_key, t.tags,
       t.schedule, t.attempt_count, t.max_attempts, t.retry_strategy, t.created_at, t.scheduled_for, t.deadline,
       t.enqueued_at, t.started_at, t.finished_at, t.worker_id, t.lease_expires_at, t.progress, t.progress_text,
       t.dead_reason, t.last_error, t.revision, t.replay_count
