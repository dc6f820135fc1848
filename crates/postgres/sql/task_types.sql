-- The types that have tasks to enqueue, walked from one to the next without the tasks between them; and whether keys
-- wait to be promoted.
-- Plan: Index Only Scan using task_claim on task t
-- Plan: Index Only Scan using task_claim on task t_1
-- Plan: Index Only Scan using task_unplaced_key on task_unplaced
with recursive kind (task_type) as (
  (select t.task_type from {schema}.task t where t.state = 'PENDING' and not t.blocked order by t.task_type limit 1)
  union all
  select next.task_type
  from kind
  cross join lateral (select t.task_type from {schema}.task t
                      where t.state = 'PENDING' and not t.blocked and t.task_type > kind.task_type
                      order by t.task_type limit 1) next)
select array(select task_type from kind) as types, exists (select 1 from {schema}.task_unplaced) as has_unplaced
