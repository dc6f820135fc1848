-- Sends the messages of tasks again that have been enqueued for too long, the longest due first.
-- Plan: Index Scan using task_claim on task t
-- Plan: Tid Scan on task t_1
with found as materialized (
  select first.row_ctid, first.due
  from unnest('{9,8,7,6,5,4,3,2,1,0}'::smallint[]) as urgency (priority)
  cross join lateral (
    select t.ctid as row_ctid, t.scheduled_for as due from {schema}.task t
    where t.state = 'ENQUEUED' and not t.blocked and t.task_type = $1 and t.priority = urgency.priority
      and t.scheduled_for <= {schema}.clock() - $3::bigint * interval '1 microsecond'
      and coalesce(t.enqueued_at <= {schema}.clock() - $3::bigint * interval '1 microsecond', true)
      and (t.deadline is null or t.deadline > {schema}.clock())
    order by t.scheduled_for limit $2 for update skip locked) first),
chosen as materialized (select row_ctid from found order by due limit $2),
sent as (
  update {schema}.task t set enqueued_at = {schema}.clock()
  from chosen
  where t.ctid = chosen.row_ctid
  returning t.task_id, t.task_type, t.priority),
{post_tasks}
select count(*) from messages
