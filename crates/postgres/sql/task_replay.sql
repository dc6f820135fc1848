-- Makes dead tasks runnable again, as new ones with a history. The state is compared as text, or the planner would walk
-- all dead tasks.
-- Plan: Index Scan using task_identity on task t
-- Plan: Index Scan using task_pkey on task t_1
with chosen as materialized (
  select t.id
  from unnest($1::uuid[]) as wanted (task_id) join {schema}.task t on t.task_id = wanted.task_id
  where t.state::text = 'DEAD'
  for update of t),
revived as (
  update {schema}.task t
  set state = 'PENDING', scheduled_for = {schema}.clock(), attempt_count = 0, replay_count = t.replay_count + 1,
      deadline = null, finished_at = null, dead_reason = null, first_started_at = null, started_at = null,
      enqueued_at = null, progress = null, progress_text = null, worker_id = null,
      blocked = t.ordering_key is not null,
      position = case when t.ordering_key is not null then nextval('{schema}.task_position') end
  from chosen
  where t.id = chosen.id
  returning t.task_id, t.task_type, t.ordering_key),
unplaced as (
  insert into {schema}.task_unplaced (task_type, ordering_key)
  select distinct task_type, ordering_key from revived where ordering_key is not null)
select task_id, task_type, ordering_key from revived
