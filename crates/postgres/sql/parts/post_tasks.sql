messages as materialized (
  select task_id, task_type, priority, ($4::uuid[])[row_number() over ()] as message_id from sent),
listed as (
  insert into {schema}.queue (name) select distinct $7::text || task_type from messages where $5::boolean and $6::boolean
  on conflict do nothing),
posted as (
  insert into {schema}.message (queue, message_id, priority, next_attempt_at, created_at, content_type, payload)
  select $7::text || task_type, message_id, priority, {schema}.clock(), {schema}.clock(), 'application/json',
         {schema}.task_message(task_id)
  from messages where $5::boolean),
kept as (
  insert into {schema}.outbox (queue, message_id, priority, due_at, created_at, content_type, payload)
  select $7::text || task_type, message_id, priority, {schema}.clock(), {schema}.clock(), 'application/json',
         {schema}.task_message(task_id)
  from messages where not $5::boolean)
