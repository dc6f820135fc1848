-- Ends failed attempts of tasks that have attempts left. The task keeps its key. Where a queue delivers tasks, its
-- message is sent too.
-- Plan: Index Scan using task_identity on task t
with failed as (
  update {schema}.task t
  set state = 'ENQUEUED', scheduled_for = {schema}.clock() + s.delay * interval '1 microsecond', last_error = s.error,
      lease_token = null, lease_expires_at = null,
      enqueued_at = case when $8::boolean then {schema}.clock() else t.enqueued_at end
  from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::uuid[])
       as s (task_id, lease_token, delay, error, message_id)
  where t.task_id = s.task_id and t.state::text = 'PROCESSING' and t.lease_token = s.lease_token
    and (not $6::boolean or t.lease_expires_at <= {schema}.clock())
    and t.attempt_count < t.max_attempts
  returning t.id, t.task_id, s.lease_token, t.task_type, t.priority, t.scheduled_for, t.replay_count, t.attempt_count,
            t.worker_id, t.started_at, s.error, s.message_id),
noted as (
  insert into {schema}.task_attempt (id, replay, attempt, worker_id, started_at, ended_at, outcome, error)
  select id, replay_count, attempt_count, worker_id, started_at, {schema}.clock(), $7::text, error from failed),
listed as (
  insert into {schema}.queue (name)
  select distinct $11::text || task_type from failed where $8::boolean and $9::boolean and $10::boolean
  on conflict do nothing),
posted as (
  insert into {schema}.message (queue, message_id, priority, next_attempt_at, created_at, content_type, payload)
  select $11::text || task_type, message_id, priority, scheduled_for, {schema}.clock(), 'application/json',
         {schema}.task_message(task_id)
  from failed where $8::boolean and $9::boolean),
kept as (
  insert into {schema}.outbox (queue, message_id, priority, due_at, created_at, content_type, payload)
  select $11::text || task_type, message_id, priority, scheduled_for, {schema}.clock(), 'application/json',
         {schema}.task_message(task_id)
  from failed where $8::boolean and not $9::boolean)
select task_id, lease_token, task_type, null::text as ordering_key from failed
