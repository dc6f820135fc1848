-- A task without a number of attempts has 24, like a task of the library.
create or replace function {schema}.create_task(task_type text, payload bytea, scheduled_for timestamptz default null,
                                     delay interval default '0', priority int default 4, max_attempts bigint default null,
                                     ordering_key text default null, idempotency_key text default null,
                                     retry_strategy jsonb default null, deadline timestamptz default null,
                                     tags text[] default null, task_id uuid default null,
                                     queue_prefix text default 'task_')
returns uuid language plpgsql as $body$
declare
  by_strategy bigint := case when retry_strategy->>'strategy' = 'no_retry' then 1
                             else (retry_strategy->'limits'->>'max_attempts')::bigint end;
  answer record;
begin
  perform {schema}.check_task(task_type, payload, scheduled_for, delay, priority, coalesce(max_attempts, by_strategy, 24),
                              ordering_key, idempotency_key, retry_strategy, deadline, tags);
  if max_attempts <> by_strategy then
    raise exception 'invalid max_attempts: % attempts and a strategy with % contradict each other; name one',
                    max_attempts, by_strategy using errcode = '22023';
  end if;
  select made.id, made.state into answer
  from {schema}.make_task(task_type, payload, coalesce(scheduled_for, {schema}.clock() + delay), priority,
                          coalesce(max_attempts, by_strategy, 24), ordering_key, idempotency_key, retry_strategy::text,
                          deadline, tags, null, coalesce(task_id, {schema}.new_message_id()),
                          -- The waiting workers, and the enqueuer.
                          array[queue_prefix || task_type, 'postrider_tasks']) made;
  if answer.state is null then
    raise exception 'there is a task % already; make a new id, or use an idempotency key to make a task once', answer.id
      using errcode = '23505';
  end if;
  return answer.id;
end
$body$;
