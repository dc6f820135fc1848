-- Cancels tasks in any state but an end. The ids are sorted.
-- Plan: Index Scan using task_identity on task t
-- Plan: Index Scan using task_pkey on task t_1
with chosen as materialized (
  select t.id, t.state
  from unnest($1::uuid[]) as wanted (task_id) join {schema}.task t on t.task_id = wanted.task_id
  where t.state in ('PENDING', 'ENQUEUED', 'PROCESSING')
  for update of t),
canceled as (
  update {schema}.task t
  set state = 'CANCELED', finished_at = {schema}.clock(), blocked = false, lease_token = null, lease_expires_at = null
  from chosen
  where t.id = chosen.id
  returning t.id, t.task_id, t.task_type, t.ordering_key, t.replay_count, t.attempt_count, t.worker_id, t.started_at,
            chosen.state as was),
noted as (
  insert into {schema}.task_attempt (id, replay, attempt, worker_id, started_at, ended_at, outcome)
  select id, replay_count, attempt_count, worker_id, started_at, {schema}.clock(), 'canceled'
  from canceled where was = 'PROCESSING'),
unplaced as (
  insert into {schema}.task_unplaced (task_type, ordering_key)
  select distinct task_type, ordering_key from canceled where ordering_key is not null)
select task_id, task_type, ordering_key, was::text as was from canceled
