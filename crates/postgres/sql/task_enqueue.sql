-- Enqueues due tasks, with the messages that deliver them. Tasks that are enqueued already are not walked.
-- Plan: Index Scan using task_claim on task t
-- Plan: Tid Scan on task t_1
with chosen as materialized (
  select found.row_ctid
  from unnest($1::smallint[], $2::text[]) as probe (priority, task_type)
  cross join lateral (
    select t.ctid as row_ctid from {schema}.task t
    where t.state = 'PENDING' and not t.blocked and t.task_type = probe.task_type and t.priority = probe.priority
      and t.scheduled_for <= {schema}.clock() and (t.deadline is null or t.deadline > {schema}.clock())
    order by t.scheduled_for limit $3 for update skip locked) found
  limit $3),
sent as (
  update {schema}.task t set state = 'ENQUEUED', enqueued_at = {schema}.clock()
  from chosen
  where t.ctid = chosen.row_ctid
  returning t.task_id, t.task_type, t.priority),
{post_tasks}
select task_type, count(*) as count from messages group by task_type
