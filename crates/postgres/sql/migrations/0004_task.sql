-- Tasks in all states. The indexes are partial, so that an ended task slows neither a claim nor an enqueue.
create type {schema}.task_state as enum ('PENDING', 'ENQUEUED', 'PROCESSING', 'SUCCEEDED', 'DEAD', 'CANCELED');

-- The order of the tasks of a key. Not the row numbers, because a replayed task joins the end.
create sequence {schema}.task_position;

create table {schema}.task (
  -- Ascends in the order of creation.
  id bigint generated always as identity primary key,
  scheduled_for timestamptz not null,
  created_at timestamptz not null,
  -- Of the running attempt, as is the token.
  lease_expires_at timestamptz,
  -- Random, new in every claim.
  lease_token bigint,
  -- When it was last enqueued.
  enqueued_at timestamptz,
  -- Of the first attempt since the creation or the last replay.
  first_started_at timestamptz,
  -- Of the running attempt, or of the last one.
  started_at timestamptz,
  finished_at timestamptz,
  deadline timestamptz,
  -- Null for a task without a key.
  position bigint,
  progress double precision,
  attempt_count bigint not null default 0,
  max_attempts bigint not null check (max_attempts > 0),
  revision bigint not null default 0,
  replay_count bigint not null default 0,
  task_id uuid not null,
  state {schema}.task_state not null default 'PENDING',
  priority smallint not null default 4 check (priority between 0 and 9),
  -- True for a task that waits behind another one of its key.
  blocked boolean not null default false,
  task_type text collate "C" not null,
  ordering_key text collate "C",
  idempotency_key text collate "C",
  -- Of the running attempt, or of the last one.
  worker_id text,
  schedule text,
  dead_reason text,
  -- JSON; null is the default strategy.
  retry_strategy text,
  tags text[],
  progress_text text,
  last_error text,
  result bytea,
  payload bytea not null
);

create unique index task_identity on {schema}.task (task_id);
-- Matches the claim: one probe a state, a type and a priority, in the order of the due times.
create index task_claim on {schema}.task (state, task_type, priority, scheduled_for)
  where state in ('PENDING', 'ENQUEUED') and not blocked;
create index task_lease on {schema}.task (lease_expires_at) where state = 'PROCESSING';
create index task_deadline on {schema}.task (deadline)
  where deadline is not null and state in ('PENDING', 'ENQUEUED', 'PROCESSING');
create index task_key on {schema}.task (task_type, ordering_key, position)
  where ordering_key is not null and state in ('PENDING', 'ENQUEUED', 'PROCESSING');
-- At most one head a key. It also answers whether a key has one without walking the tasks behind it.
create unique index task_head on {schema}.task (task_type, ordering_key)
  where ordering_key is not null and not blocked and state in ('PENDING', 'ENQUEUED', 'PROCESSING');
create unique index task_idempotency on {schema}.task (task_type, idempotency_key) where idempotency_key is not null;
create index task_ended on {schema}.task (state, id) where state in ('DEAD', 'CANCELED');

-- Every task leaves two dead rows, so vacuum runs by their number and at full speed.
alter table {schema}.task set (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000
);

-- Keys to which a transaction has added a task, or of which it has ended one. Promoting the next task needs the key's
-- lock, which a caller's transaction could hold for any time: so it is done after the commit, by the process that noted
-- the key or by the next claim.
create table {schema}.task_unplaced (
  id bigint generated always as identity primary key,
  task_type text collate "C" not null,
  ordering_key text collate "C" not null
);
create index task_unplaced_key on {schema}.task_unplaced (task_type, ordering_key);
alter table {schema}.task_unplaced set (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);

-- Failed attempts. The running attempt and the successful one are kept in the task's row, so a task that succeeds at
-- once has no row here.
create table {schema}.task_attempt (
  -- The task's row.
  id bigint not null,
  replay bigint not null,
  attempt bigint not null,
  started_at timestamptz not null,
  ended_at timestamptz not null,
  worker_id text not null,
  outcome text not null,
  error text,
  primary key (id, replay, attempt)
);

-- Payloads that tasks had before they were edited.
create table {schema}.task_revision (
  -- The task's row.
  id bigint not null,
  revision bigint not null,
  replaced_at timestamptz not null,
  payload bytea not null,
  primary key (id, revision)
);

-- Messages to queues of another store, committed with their transition.
create table {schema}.outbox (
  id bigint generated always as identity primary key,
  due_at timestamptz not null,
  created_at timestamptz not null,
  lease_expires_at timestamptz,
  lease_token bigint,
  message_id uuid not null,
  priority smallint not null,
  queue text collate "C" not null,
  content_type text,
  payload bytea not null
);
-- A leased row sorts at the end of its lease, so others do not walk it.
create index outbox_due on {schema}.outbox ((coalesce(lease_expires_at, due_at)), id);
create index outbox_queue on {schema}.outbox (queue);
alter table {schema}.outbox set (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
);

-- Schedules of tasks.
create table {schema}.task_schedule (
  name text collate "C" not null primary key,
  -- JSON.
  definition text not null,
  -- Rises with every change.
  version bigint not null,
  created_at timestamptz not null,
  paused_at timestamptz,
  next_run_at timestamptz,
  last_run_at timestamptz,
  last_task_id uuid
);
create index task_schedule_due on {schema}.task_schedule (next_run_at)
  where paused_at is null and next_run_at is not null;

-- The message that delivers a task: only its id, because the store has the rest.
create function {schema}.task_message(task_id uuid) returns bytea language sql stable parallel safe as $body$
  select convert_to('{"taskId":"' || task_id || '"}', 'UTF8')
$body$;

-- The event of a task's death, from its row, with at most `room` characters of its error.
create function {schema}.dead_task_event(dead {schema}.task, room int) returns bytea language sql stable parallel safe
as $body$
  select convert_to(json_build_object(
    'taskId', dead.task_id, 'taskType', dead.task_type, 'workerId', dead.worker_id, 'attemptCount', dead.attempt_count,
    'maxAttempts', dead.max_attempts, 'reason', dead.dead_reason, 'error', left(coalesce(dead.last_error, ''), room),
    'deadAt', to_char(dead.finished_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
    'payload', json_build_object('revision', dead.revision, 'bytes', octet_length(dead.payload)))::text, 'UTF8')
$body$;

-- Refuses invalid tasks, and says what is allowed.
create function {schema}.check_task(task_type text, payload bytea, scheduled_for timestamptz, delay interval,
                                    priority int, max_attempts bigint, ordering_key text, idempotency_key text,
                                    retry_strategy jsonb, deadline timestamptz, tags text[])
returns void language plpgsql stable as $body$
declare
  tag text;
begin
  if task_type is null or task_type !~ '^[A-Za-z0-9_.-]{1,64}$' or task_type like '%\_dlq' then
    raise exception 'invalid task type: use 1 to 64 letters, digits, ''_'', ''.'' and ''-'', not ending with ''_dlq'''
      using errcode = '22023';
  end if;
  if payload is null then
    raise exception 'invalid payload: it is null; give an empty one if there is nothing to say' using errcode = '22023';
  end if;
  if delay is null or delay < interval '0' or extract(epoch from delay) > 36500 * 86400.0 then
    raise exception 'invalid delay: use one from 0 to 36500 days' using errcode = '22023';
  end if;
  if greatest(scheduled_for, deadline) > {schema}.clock() + interval '36500 days'
     or least(scheduled_for, deadline) < 'epoch' then
    raise exception 'invalid time: it is before 1970 or more than a hundred years from now' using errcode = '22023';
  end if;
  if priority is null or priority not between 0 and 9 then
    raise exception 'invalid priority: % is not between 0 and 9', priority using errcode = '22023';
  end if;
  if max_attempts not between 1 and 4294967295 then
    raise exception 'invalid max_attempts: the first attempt is always made; use 1 or more' using errcode = '22023';
  end if;
  if ordering_key = '' or octet_length(ordering_key) > 128 or ordering_key ~ '[[:cntrl:]]' then
    raise exception 'invalid ordering key: use 1 to 128 bytes of text without control characters' using errcode = '22023';
  end if;
  if idempotency_key = '' or octet_length(idempotency_key) > 512 or idempotency_key ~ '[[:cntrl:]]' then
    raise exception 'invalid idempotency key: use 1 to 512 bytes of text without control characters'
      using errcode = '22023';
  end if;
  if retry_strategy is not null and (jsonb_typeof(retry_strategy) <> 'object' or not coalesce(
       retry_strategy->>'strategy' in ('no_retry', 'constant', 'linear', 'exponential', 'exponential_with_jitter',
                                       'constant_with_jitter'), false)) then
    raise exception 'invalid retry strategy: use an object such as {"strategy": "constant", "delay": "5s"}'
      using errcode = '22023';
  end if;
  if cardinality(tags) > 32 then
    raise exception 'invalid tags: % are too many, at most 32 are allowed', cardinality(tags) using errcode = '22023';
  end if;
  foreach tag in array coalesce(tags, '{}') loop
    if tag is null or tag = '' or octet_length(tag) > 128 or tag ~ '[[:cntrl:]]' then
      raise exception 'invalid tag: use 1 to 128 bytes of text without control characters' using errcode = '22023';
    end if;
  end loop;
end
$body$;

-- Creates a task and returns it, or returns the one with its idempotency key; no state if the id is taken. A caller's
-- transaction may stay open for any time, so nothing here takes a lock that others need but the idempotency key itself.
create function {schema}.make_task(task_type text, payload bytea, scheduled_for timestamptz, priority int,
                                   max_attempts bigint, ordering_key text, idempotency_key text, retry_strategy text,
                                   deadline timestamptz, tags text[], schedule text, task_id uuid, notices text[],
                                   out id uuid, out is_new boolean, out state {schema}.task_state)
language plpgsql as $body$
declare
  notice text;
begin
  loop
    insert into {schema}.task (task_id, task_type, priority, scheduled_for, created_at, max_attempts, deadline,
                               ordering_key, position, blocked, idempotency_key, retry_strategy, tags, schedule, payload)
    values (make_task.task_id, make_task.task_type, make_task.priority, make_task.scheduled_for, {schema}.clock(),
            make_task.max_attempts, make_task.deadline, make_task.ordering_key,
            case when make_task.ordering_key is not null then nextval('{schema}.task_position') end,
            make_task.ordering_key is not null, make_task.idempotency_key, make_task.retry_strategy,
            nullif(make_task.tags, '{}'), make_task.schedule, make_task.payload)
    on conflict do nothing;
    if found then
      id := make_task.task_id;
      is_new := true;
      state := 'PENDING';
      exit;
    end if;
    is_new := false;
    select t.task_id, t.state into id, state from {schema}.task t
    where t.task_type = make_task.task_type and t.idempotency_key = make_task.idempotency_key;
    if found then
      return;
    end if;
    if exists (select 1 from {schema}.task t where t.task_id = make_task.task_id) then
      id := make_task.task_id;
      state := null;
      return;
    end if;
  end loop;
  if ordering_key is not null then
    insert into {schema}.task_unplaced (task_type, ordering_key) values (make_task.task_type, make_task.ordering_key);
  end if;
  -- Of many in one transaction the server keeps one.
  foreach notice in array notices loop
    perform pg_notify('{channel}', {schema}.hint(notice));
  end loop;
end
$body$;

-- Creates a task with a payload of bytes, from any SQL client inside its own transaction: the task exists if and only
-- if the transaction commits. Returns its id, or the id of the task with its idempotency key.
create function {schema}.create_task(task_type text, payload bytea, scheduled_for timestamptz default null,
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
  perform {schema}.check_task(task_type, payload, scheduled_for, delay, priority, coalesce(max_attempts, by_strategy, 3),
                              ordering_key, idempotency_key, retry_strategy, deadline, tags);
  if max_attempts <> by_strategy then
    raise exception 'invalid max_attempts: % attempts and a strategy with % contradict each other; name one',
                    max_attempts, by_strategy using errcode = '22023';
  end if;
  select made.id, made.state into answer
  from {schema}.make_task(task_type, payload, coalesce(scheduled_for, {schema}.clock() + delay), priority,
                          coalesce(max_attempts, by_strategy, 3), ordering_key, idempotency_key, retry_strategy::text,
                          deadline, tags, null, coalesce(task_id, {schema}.new_message_id()),
                          -- Whoever waits for it: a worker that polls, or whoever sends tasks on their way.
                          array[queue_prefix || task_type, 'postrider_tasks']) made;
  if answer.state is null then
    raise exception 'there is a task % already; make a new id, or use an idempotency key to make a task once', answer.id
      using errcode = '23505';
  end if;
  return answer.id;
end
$body$;

-- The same with text.
create function {schema}.create_task(task_type text, payload text, scheduled_for timestamptz default null,
                                     delay interval default '0', priority int default 4, max_attempts bigint default null,
                                     ordering_key text default null, idempotency_key text default null,
                                     retry_strategy jsonb default null, deadline timestamptz default null,
                                     tags text[] default null, task_id uuid default null,
                                     queue_prefix text default 'task_')
returns uuid language sql as $body$
  select {schema}.create_task(task_type, convert_to(payload, 'UTF8'), scheduled_for, delay, priority, max_attempts,
                              ordering_key, idempotency_key, retry_strategy, deadline, tags, task_id, queue_prefix)
$body$;

-- The same with JSON.
create function {schema}.create_task(task_type text, payload jsonb, scheduled_for timestamptz default null,
                                     delay interval default '0', priority int default 4, max_attempts bigint default null,
                                     ordering_key text default null, idempotency_key text default null,
                                     retry_strategy jsonb default null, deadline timestamptz default null,
                                     tags text[] default null, task_id uuid default null,
                                     queue_prefix text default 'task_')
returns uuid language sql as $body$
  select {schema}.create_task(task_type, convert_to(payload::text, 'UTF8'), scheduled_for, delay, priority, max_attempts,
                              ordering_key, idempotency_key, retry_strategy, deadline, tags, task_id, queue_prefix)
$body$;
