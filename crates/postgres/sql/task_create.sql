-- Creates tasks, in order. A task whose idempotency key or id is taken is left out. A keyed task is created blocked,
-- and its key is noted, to be promoted afterwards. An open transaction with one of the idempotency keys is waited for a
-- moment: long enough for one that is about to commit.
with lock_wait as materialized (select set_config('lock_timeout', '200ms', true)),
made as (
  insert into {schema}.task (task_id, task_type, priority, scheduled_for, created_at, max_attempts, deadline,
                             ordering_key, position, blocked, idempotency_key, retry_strategy, tags, schedule, payload)
  select s.task_id, s.task_type, s.priority,
         coalesce(s.scheduled_for, {schema}.clock() + s.delay * interval '1 microsecond'), {schema}.clock(),
         s.max_attempts, coalesce(s.deadline, {schema}.clock() + s.lifetime * interval '1 microsecond'), s.ordering_key,
         case when s.ordering_key is not null then nextval('{schema}.task_position') end, s.ordering_key is not null,
         s.idempotency_key, s.retry_strategy,
         case when s.tags is not null then array(select jsonb_array_elements_text(s.tags::jsonb)) end, s.schedule,
         s.payload
  from lock_wait,
       unnest($1::uuid[], $2::text[], $3::smallint[], $4::timestamptz[], $5::bigint[], $6::bigint[], $7::timestamptz[],
              $8::bigint[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::bytea[])
       as s (task_id, task_type, priority, scheduled_for, delay, max_attempts, deadline, lifetime, ordering_key,
             idempotency_key, retry_strategy, tags, schedule, payload)
  on conflict do nothing
  returning task_id, task_type, ordering_key),
unplaced as (
  insert into {schema}.task_unplaced (task_type, ordering_key)
  select distinct task_type, ordering_key from made where ordering_key is not null)
select task_id, task_type, ordering_key from made
