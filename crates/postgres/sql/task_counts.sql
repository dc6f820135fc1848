-- Tasks by type and state, and whether there may be more. Live tasks are counted by their indexes; all tasks behind the
-- head of a key are PENDING, so they are the tasks of keys without the heads. Ended tasks are counted among the newest
-- $1: DEAD and CANCELED of their state, SUCCEEDED, which have no index, of all tasks.
-- Plan: Index Only Scan using task_claim on task t
-- Plan: Index Only Scan using task_key on task k
-- Plan: Index Only Scan using task_head on task h
-- Plan: Index Scan using task_lease on task p
-- Plan: Index Scan Backward using task_ended on task d
-- Plan: Index Scan Backward using task_ended on task c
-- Plan: Index Scan Backward using task_pkey on task n
select counted.task_type, counted.state, sum(counted.count)::bigint as count, bool_or(counted.has_more) as has_more
from (
  select t.task_type, t.state::text as state, count(*) as count, false as has_more from {schema}.task t
  where t.state in ('PENDING', 'ENQUEUED') and not t.blocked group by t.state, t.task_type
  union all
  select k.task_type, 'PENDING', count(*), false from {schema}.task k
  where k.ordering_key is not null and k.state in ('PENDING', 'ENQUEUED', 'PROCESSING') group by k.task_type
  union all
  select h.task_type, 'PENDING', -count(*), false from {schema}.task h
  where h.ordering_key is not null and not h.blocked and h.state in ('PENDING', 'ENQUEUED', 'PROCESSING')
  group by h.task_type
  union all
  select p.task_type, 'PROCESSING', count(*), false from {schema}.task p
  where p.state = 'PROCESSING' and p.lease_expires_at is not null group by p.task_type
  union all
  select dead.task_type, 'DEAD', count(*),
         exists (select 1 from {schema}.task where state in ('DEAD', 'CANCELED') and state = 'DEAD'
                 order by id desc offset $1::bigint limit 1)
  from (select d.task_type from {schema}.task d where d.state in ('DEAD', 'CANCELED') and d.state = 'DEAD'
        order by d.id desc limit $1::bigint) dead
  group by dead.task_type
  union all
  select canceled.task_type, 'CANCELED', count(*),
         exists (select 1 from {schema}.task where state in ('DEAD', 'CANCELED') and state = 'CANCELED'
                 order by id desc offset $1::bigint limit 1)
  from (select c.task_type from {schema}.task c where c.state in ('DEAD', 'CANCELED') and c.state = 'CANCELED'
        order by c.id desc limit $1::bigint) canceled
  group by canceled.task_type
  union all
  select newest.task_type, 'SUCCEEDED', count(*) filter (where newest.state = 'SUCCEEDED'),
         exists (select 1 from {schema}.task order by id desc offset $1::bigint limit 1)
  from (select n.task_type, n.state from {schema}.task n order by n.id desc limit $1::bigint) newest
  group by newest.task_type
) counted
group by counted.task_type, counted.state
