-- The number of tasks by type and state, and whether there may be more. Living tasks are counted by their indexes;
-- every task behind the head of a key is PENDING. Ended tasks are counted among the newest ?1: DEAD and CANCELED of
-- their state, SUCCEEDED, which has no index, of all tasks. With 1 000 000 tasks that ended, rows of 400 bytes and ?1 =
-- 20 000 it takes 0.1 s; a count of all of them takes 0.8 s.
-- Plan: SEARCH task USING COVERING INDEX task_claim (state=?)
-- Plan: SCAN task USING INDEX task_key
-- Plan: USE TEMP B-TREE FOR count(DISTINCT)
-- Plan: SEARCH task USING INDEX task_lease (lease_expires_at>?)
-- Plan: SEARCH task USING INDEX task_ended (state=?)
-- Plan: SEARCH task USING COVERING INDEX task_ended (state=?)
-- Plan: SCAN task
-- Plan: SCAN task USING COVERING INDEX task_identity
-- Plan: USE TEMP B-TREE FOR GROUP BY
select task_type, state, sum(count) as count, max(has_more) as has_more
from (
  select task_type, state, count(*) as count, 0 as has_more from task
  where state in ('PENDING', 'ENQUEUED') and blocked = 0 group by state, task_type
  union all
  select task_type, 'PENDING', count(*) - count(distinct ordering_key), 0 from task
  where ordering_key is not null and state in ('PENDING', 'ENQUEUED', 'PROCESSING') group by task_type
  union all
  select task_type, 'PROCESSING', count(*), 0 from task
  where state = 'PROCESSING' and lease_expires_at is not null group by task_type
  union all
  select task_type, 'DEAD', count(*),
         exists (select 1 from task where state in ('DEAD', 'CANCELED') and state = 'DEAD'
                 order by id desc limit 1 offset ?1)
  from (select task_type from task where state in ('DEAD', 'CANCELED') and state = 'DEAD' order by id desc limit ?1)
  group by task_type
  union all
  select task_type, 'CANCELED', count(*),
         exists (select 1 from task where state in ('DEAD', 'CANCELED') and state = 'CANCELED'
                 order by id desc limit 1 offset ?1)
  from (select task_type from task where state in ('DEAD', 'CANCELED') and state = 'CANCELED' order by id desc limit ?1)
  group by task_type
  union all
  select task_type, 'SUCCEEDED', sum(state = 'SUCCEEDED'),
         exists (select 1 from task order by id desc limit 1 offset ?1)
  from (select task_type, state from task order by id desc limit ?1)
  group by task_type
)
group by task_type, state
