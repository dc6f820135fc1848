-- Makes waiting tasks due. An enqueued task becomes PENDING again, because its message is for the later time.
-- Plan: Index Scan using task_identity on task t_1
-- Plan: Index Scan using task_pkey on task t
with chosen as materialized (
  select t.id
  from unnest($1::uuid[]) as wanted (task_id) join {schema}.task t on t.task_id = wanted.task_id
  where t.state in ('PENDING', 'ENQUEUED')
  for update of t)
update {schema}.task t
set state = case when t.scheduled_for > {schema}.clock() then 'PENDING' else t.state end,
    scheduled_for = least(t.scheduled_for, {schema}.clock())
from chosen
where t.id = chosen.id
returning t.task_id, t.task_type, null::text as ordering_key
