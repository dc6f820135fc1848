-- All tasks, living and ended. The indexes of the claim are partial: ended tasks do not slow it, however many there
-- are.
create table task (
  -- Ascends in the order of creation. Rows that belong to a task refer to it, and are removed with it.
  id integer not null primary key,
  task_id blob not null,
  task_type text not null,
  -- PENDING, ENQUEUED, PROCESSING, SUCCEEDED, DEAD or CANCELED.
  state text not null,
  priority integer not null,
  -- 1 for a task that waits behind the head of its ordering key.
  blocked integer not null,
  scheduled_for integer not null,
  attempt_count integer not null default 0,
  max_attempts integer not null,
  lease_token integer,
  lease_expires_at integer,
  worker_id text,
  created_at integer not null,
  enqueued_at integer,
  first_started_at integer,
  started_at integer,
  finished_at integer,
  deadline integer,
  ordering_key text,
  -- The position among the tasks of its key, while the task lives.
  position integer,
  idempotency_key text,
  -- JSON; null is the default strategy.
  retry_strategy text,
  -- A JSON array of strings; null is none.
  tags text,
  schedule text,
  dead_reason text,
  last_error text,
  progress real,
  progress_text text,
  revision integer not null default 0,
  replay_count integer not null default 0,
  result blob,
  payload blob not null
);

create unique index task_identity on task (task_id);
-- Matches the claim: one probe for each state, type and priority, in the order of scheduled_for.
create index task_claim on task (state, task_type, priority, scheduled_for)
  where state in ('PENDING', 'ENQUEUED') and blocked = 0;
create index task_lease on task (lease_expires_at) where state = 'PROCESSING';
create index task_deadline on task (deadline)
  where deadline is not null and state in ('PENDING', 'ENQUEUED', 'PROCESSING');
create index task_key on task (task_type, ordering_key, position)
  where ordering_key is not null and state in ('PENDING', 'ENQUEUED', 'PROCESSING');
-- Ended tasks keep their key, so that a second creation returns the first task.
create unique index task_idempotency on task (task_type, idempotency_key) where idempotency_key is not null;
create index task_ended on task (state, id) where state in ('DEAD', 'CANCELED');

-- Attempts that ended without success. The running or successful attempt is in the task's row, so that a task that
-- succeeds at once writes nothing here.
create table task_attempt (
  -- The task's row.
  id integer not null,
  replay integer not null,
  attempt integer not null,
  worker_id text not null,
  started_at integer not null,
  ended_at integer not null,
  -- failed, lease_lost, canceled or deadline.
  outcome text not null,
  error text,
  primary key (id, replay, attempt)
) without rowid;

-- Payloads of tasks before their edits.
create table task_revision (
  -- The task's row.
  id integer not null,
  revision integer not null,
  replaced_at integer not null,
  payload blob not null,
  primary key (id, revision)
);

-- The outbox: messages for queues of other stores, committed with the change that causes them. A row stays until its
-- message is certainly sent.
create table outbox (
  id integer not null primary key,
  queue text not null,
  message_id blob not null,
  priority integer not null,
  due_at integer not null,
  content_type text,
  created_at integer not null,
  -- The lease of the keeper that sends it.
  lease_token integer,
  lease_expires_at integer,
  payload blob not null
);
-- Leased messages are ordered by the end of their lease, so that others do not read them.
create index outbox_due on outbox (coalesce(lease_expires_at, due_at));
-- For the count of unsent messages of a queue, which decides whether messages are sent again.
create index outbox_queue on outbox (queue);

-- Schedules, which create tasks.
create table task_schedule (
  name text not null primary key,
  -- The definition by its creator, as JSON.
  definition text not null,
  -- Rises with every change.
  version integer not null,
  created_at integer not null,
  paused_at integer,
  next_run_at integer,
  last_run_at integer,
  last_task_id blob
) without rowid;
create index task_schedule_due on task_schedule (next_run_at) where paused_at is null and next_run_at is not null;
