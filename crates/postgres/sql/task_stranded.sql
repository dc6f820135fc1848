-- The types that have tasks enqueued for too long, with their numbers: walks from one type to the next and counts up to
-- a limit.
-- Plan: Index Only Scan using task_claim on task t_2
-- Plan: Index Only Scan using task_claim on task t_1
-- Plan: Index Scan using task_claim on task t
-- Plan: Index Only Scan using outbox_queue on outbox o
-- Plan: Index Scan using task_lease on task p
with recursive kind (task_type) as (
  (select t.task_type from {schema}.task t where t.state = 'ENQUEUED' and not t.blocked order by t.task_type limit 1)
  union all
  select next.task_type
  from kind
  cross join lateral (select t.task_type from {schema}.task t
                      where t.state = 'ENQUEUED' and not t.blocked and t.task_type > kind.task_type
                      order by t.task_type limit 1) next)
select kind.task_type, due.enqueued,
       (select count(*) from (select 1 from {schema}.outbox o
                              where o.queue = $2::text || kind.task_type limit $3) few) as in_outbox,
       (select count(*) from (select 1 from {schema}.task p
                              where p.state = 'PROCESSING' and p.lease_expires_at is not null
                                and p.task_type = kind.task_type limit $3) few) as processing
from kind
cross join lateral (
  select count(*) as enqueued, bool_or(each.is_old) as has_old
  from (
    select first.is_old
    from unnest('{9,8,7,6,5,4,3,2,1,0}'::smallint[]) as urgency (priority)
    cross join lateral (
      select t.scheduled_for <= {schema}.clock() - $1::bigint * interval '1 microsecond'
             and coalesce(t.enqueued_at <= {schema}.clock() - $1::bigint * interval '1 microsecond', true) as is_old
      from {schema}.task t
      where t.state = 'ENQUEUED' and not t.blocked and t.task_type = kind.task_type and t.priority = urgency.priority
        and t.scheduled_for <= {schema}.clock()
      order by t.scheduled_for limit $3) first
    limit $3) each) due
where due.has_old
