-- Takes the attempt back: the attempt before it is the last again.
-- Plan: Index Scan using task_identity on task t
-- Plan: Index Scan using task_attempt_pkey on task_attempt a
with released as (
  update {schema}.task t
  set state = case when $4::boolean then 'ENQUEUED'::{schema}.task_state else 'PENDING' end,
      attempt_count = greatest(t.attempt_count - 1, 0), lease_token = null, lease_expires_at = null,
      enqueued_at = case when $4::boolean then {schema}.clock() else t.enqueued_at end,
      first_started_at = case when t.attempt_count > 1 then t.first_started_at end,
      (worker_id, started_at) =
        (select a.worker_id, a.started_at from {schema}.task_attempt a
         where a.id = t.id and a.replay = t.replay_count and a.attempt = t.attempt_count - 1)
  from unnest($1::uuid[], $2::bigint[], $3::uuid[]) as s (task_id, lease_token, message_id)
  where t.task_id = s.task_id and t.state::text = 'PROCESSING' and t.lease_token = s.lease_token
  returning t.task_id, s.lease_token, t.task_type, t.priority, s.message_id),
listed as (
  insert into {schema}.queue (name)
  select distinct $7::text || task_type from released where $4::boolean and $5::boolean and $6::boolean
  on conflict do nothing),
posted as (
  insert into {schema}.message (queue, message_id, priority, next_attempt_at, created_at, content_type, payload)
  select $7::text || task_type, message_id, priority, {schema}.clock(), {schema}.clock(), 'application/json',
         {schema}.task_message(task_id)
  from released where $4::boolean and $5::boolean),
kept as (
  insert into {schema}.outbox (queue, message_id, priority, due_at, created_at, content_type, payload)
  select $7::text || task_type, message_id, priority, {schema}.clock(), {schema}.clock(), 'application/json',
         {schema}.task_message(task_id)
  from released where $4::boolean and not $5::boolean)
select task_id, lease_token, task_type, null::text as ordering_key from released
