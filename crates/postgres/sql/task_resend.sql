-- Sends tasks again that have been on their way for too long, the longest due first.
-- Plan: Index Scan using task_claim on task t
-- Plan: Tid Scan on task t_1
with found as materialized (
  select first.place, first.due
  from unnest('{9,8,7,6,5,4,3,2,1,0}'::smallint[]) as urgency (priority)
  cross join lateral (
    select t.ctid as place, t.scheduled_for as due from {schema}.task t
    where t.state = 'ENQUEUED' and not t.blocked and t.task_type = $1 and t.priority = urgency.priority
      and t.scheduled_for <= {schema}.clock() - $3::bigint * interval '1 microsecond'
      and coalesce(t.enqueued_at <= {schema}.clock() - $3::bigint * interval '1 microsecond', true)
      and (t.deadline is null or t.deadline > {schema}.clock())
    order by t.scheduled_for limit $2 for update skip locked) first),
chosen as materialized (select place from found order by due limit $2),
sent as (
  update {schema}.task t set enqueued_at = {schema}.clock()
  from chosen
  where t.ctid = chosen.place
  returning t.task_id, t.task_type, t.priority),
told as materialized (
  select task_id, task_type, priority, ($4::uuid[])[row_number() over ()] as message_id from sent),
listed as (
  insert into {schema}.queue (name) select distinct $7::text || task_type from told where $5::boolean and $6::boolean
  on conflict do nothing),
posted as (
  insert into {schema}.message (queue, message_id, priority, next_attempt_at, created_at, content_type, payload)
  select $7::text || task_type, message_id, priority, {schema}.clock(), {schema}.clock(), 'application/json',
         {schema}.task_message(task_id)
  from told where $5::boolean),
kept as (
  insert into {schema}.outbox (queue, message_id, priority, due_at, created_at, content_type, payload)
  select $7::text || task_type, message_id, priority, {schema}.clock(), {schema}.clock(), 'application/json',
         {schema}.task_message(task_id)
  from told where not $5::boolean)
select count(*) from told
