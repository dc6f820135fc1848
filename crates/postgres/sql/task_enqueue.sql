-- Sends tasks on their way, with the messages that deliver them. What is on its way already is never walked.
-- Plan: Index Scan using task_claim on task t
-- Plan: Tid Scan on task t_1
with chosen as materialized (
  select found.place
  from unnest($1::smallint[], $2::text[]) as probe (priority, task_type)
  cross join lateral (
    select t.ctid as place from {schema}.task t
    where t.state = 'PENDING' and not t.blocked and t.task_type = probe.task_type and t.priority = probe.priority
      and t.scheduled_for <= {schema}.clock() and (t.deadline is null or t.deadline > {schema}.clock())
    order by t.scheduled_for limit $3 for update skip locked) found
  limit $3),
sent as (
  update {schema}.task t set state = 'ENQUEUED', enqueued_at = {schema}.clock()
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
select task_type, count(*) from told group by task_type
