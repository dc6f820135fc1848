-- Plan: Index Scan Backward using task_pkey on task t
select t.id, t.task_id, t.task_type, t.state::text, t.priority, t.ordering_key, t.blocked, t.idempotency_key, t.tags,
       t.schedule, t.attempt_count, t.max_attempts, t.retry_strategy, t.created_at, t.scheduled_for, t.deadline,
       t.enqueued_at, t.started_at, t.finished_at, t.worker_id, t.lease_expires_at, t.progress, t.progress_text,
       t.dead_reason, t.last_error, t.revision, t.replay_count
from {schema}.task t
where t.id < $1 and t.id >= $2
  and ($3::text[] is null or t.state::text = any ($3::text[]))
  and ($4::text[] is null or t.task_type = any ($4::text[]))
  and ($5::text[] is null or t.tags @> $5::text[])
  and ($6::text is null or t.schedule = $6::text)
  and ($7::text is null or t.dead_reason = $7::text)
  and ($8::text is null or strpos(t.last_error, $8::text) > 0)
  and ($9::timestamptz is null or t.created_at >= $9::timestamptz)
  and ($10::timestamptz is null or t.created_at < $10::timestamptz)
  and ($12::text[] is null or t.task_type like any ($12::text[]))
order by t.id desc limit $11
