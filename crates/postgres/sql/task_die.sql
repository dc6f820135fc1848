-- Ends attempts that failed for good, with the event of the death; with $12 only the last attempts of their tasks.
-- Plan: Index Scan using task_identity on task t
with dead as (
  update {schema}.task t
  set state = 'DEAD', finished_at = {schema}.clock(), dead_reason = s.reason, last_error = s.error, lease_token = null,
      lease_expires_at = null
  from unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $6::uuid[])
       as s (task_id, lease_token, reason, error, message_id)
  where t.task_id = s.task_id and t.state::text = 'PROCESSING' and t.lease_token = s.lease_token
    and (not $7::boolean or t.lease_expires_at <= {schema}.clock())
    and (not $12::boolean or t.attempt_count >= t.max_attempts)
  returning t.id, t.task_id, s.lease_token, t.task_type, t.ordering_key, t.replay_count, t.attempt_count, t.worker_id,
            t.started_at, s.error, s.message_id,
            case when $10::text is not null then {schema}.dead_task_event(t, $11::int) end as event),
noted as (
  insert into {schema}.task_attempt (id, replay, attempt, worker_id, started_at, ended_at, outcome, error)
  select id, replay_count, attempt_count, worker_id, started_at, {schema}.clock(), $5::text, error from dead),
unplaced as (
  insert into {schema}.task_unplaced (task_type, ordering_key)
  select distinct task_type, ordering_key from dead where ordering_key is not null),
listed as (
  insert into {schema}.queue (name)
  select $10::text from dead where event is not null and $8::boolean and $9::boolean limit 1
  on conflict do nothing),
posted as (
  insert into {schema}.message (queue, message_id, next_attempt_at, created_at, content_type, payload)
  select $10::text, message_id, {schema}.clock(), {schema}.clock(), 'application/json', event
  from dead where event is not null and $8::boolean),
kept as (
  insert into {schema}.outbox (queue, message_id, priority, due_at, created_at, content_type, payload)
  select $10::text, message_id, 4, {schema}.clock(), {schema}.clock(), 'application/json', event
  from dead where event is not null and not $8::boolean)
select task_id, lease_token, task_type, ordering_key from dead
