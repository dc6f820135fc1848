-- In how many microseconds the next task of these types is to be enqueued.
-- Plan: Index Scan using task_claim on task t
select ceil(extract(epoch from min(first.due) - {schema}.clock()) * 1000000)::bigint as due_in
from unnest($1::smallint[], $2::text[]) as probe (priority, task_type)
cross join lateral (
  select t.scheduled_for as due from {schema}.task t
  where t.state = 'PENDING' and not t.blocked and t.task_type = probe.task_type and t.priority = probe.priority
    and (t.deadline is null or t.deadline > {schema}.clock())
  order by t.scheduled_for limit 1) first
