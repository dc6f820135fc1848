-- Ends tasks whose deadline has passed. Rows that other transactions have locked are left to the next call.
-- Plan: Index Scan using task_deadline on task t
-- Plan: Tid Scan on task t_1
with late as materialized (
  select t.ctid as row_ctid, t.state from {schema}.task t
  where t.deadline is not null and t.state in ('PENDING', 'ENQUEUED', 'PROCESSING') and t.deadline <= {schema}.clock()
  order by t.deadline limit $1 for update skip locked),
dead as (
  update {schema}.task t
  set state = 'DEAD', finished_at = {schema}.clock(), dead_reason = 'deadline', last_error = $2::text, blocked = false,
      lease_token = null, lease_expires_at = null
  from late
  where t.ctid = late.row_ctid
  returning t.id, t.task_id, t.task_type, t.ordering_key, t.replay_count, t.attempt_count, t.worker_id, t.started_at,
            late.state as was, case when $6::text is not null then {schema}.dead_task_event(t, $7::int) end as event),
noted as (
  insert into {schema}.task_attempt (id, replay, attempt, worker_id, started_at, ended_at, outcome, error)
  select id, replay_count, attempt_count, worker_id, started_at, {schema}.clock(), 'deadline', $2::text
  from dead where was = 'PROCESSING'),
unplaced as (
  insert into {schema}.task_unplaced (task_type, ordering_key)
  select distinct task_type, ordering_key from dead where ordering_key is not null),
messages as materialized (
  select event, ($3::uuid[])[row_number() over ()] as message_id from dead where event is not null),
listed as (
  insert into {schema}.queue (name) select $6::text from messages where $4::boolean and $5::boolean limit 1
  on conflict do nothing),
posted as (
  insert into {schema}.message (queue, message_id, next_attempt_at, created_at, content_type, payload)
  select $6::text, message_id, {schema}.clock(), {schema}.clock(), 'application/json', event
  from messages where $4::boolean),
kept as (
  insert into {schema}.outbox (queue, message_id, priority, due_at, created_at, content_type, payload)
  select $6::text, message_id, 4, {schema}.clock(), {schema}.clock(), 'application/json', event
  from messages where not $4::boolean)
select task_id, task_type, ordering_key from dead
