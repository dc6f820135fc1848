-- Tasks, all of them, whatever has become of them. Every index but the first is partial: a task that has ended costs those
-- that are to be claimed nothing, however many there are.
create table task (
  -- Ascends in the order of creation. What belongs to a task goes by it, and goes with it.
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
  -- The place in the line of its key. Counts only while the task lives.
  position integer,
  idempotency_key text,
  -- JSON; null is the default strategy.
  retry_strategy text,
  -- A JSON array of texts; null is none.
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
-- Matches the claim: a probe a state, type and priority, in the order of scheduled_for.
create index task_claim on task (state, task_type, priority, scheduled_for)
  where state in ('PENDING', 'ENQUEUED') and blocked = 0;
create index task_lease on task (lease_expires_at) where state = 'PROCESSING';
create index task_deadline on task (deadline)
  where deadline is not null and state in ('PENDING', 'ENQUEUED', 'PROCESSING');
create index task_key on task (task_type, ordering_key, position)
  where ordering_key is not null and state in ('PENDING', 'ENQUEUED', 'PROCESSING');
-- Ended tasks keep their key: that is what makes a second creation answer the first.
create unique index task_idempotency on task (task_type, idempotency_key) where idempotency_key is not null;
create index task_ended on task (state, id) where state in ('DEAD', 'CANCELED');

-- Attempts that ended without success. The one that runs, and the one that succeeded, are told from the task's own row, so
-- that a task that succeeds at once writes nothing here.
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

-- Payloads that tasks had before they were edited.
create table task_revision (
  -- The task's row.
  id integer not null,
  revision integer not null,
  replaced_at integer not null,
  payload blob not null,
  primary key (id, revision)
);

-- Messages for queues that are not in this file, written with the change that they tell of. A row stays until its message
-- was sent for certain.
create table outbox (
  id integer not null primary key,
  queue text not null,
  message_id blob not null,
  priority integer not null,
  due_at integer not null,
  content_type text,
  created_at integer not null,
  -- Of whoever sends it, and how long nobody else does.
  lease_token integer,
  lease_expires_at integer,
  payload blob not null
);
-- What somebody has taken stands at the end of its lease and is not walked by others.
create index outbox_due on outbox (coalesce(lease_expires_at, due_at));
-- For the count of what is still to be sent to a queue, on which hangs what is sent again.
create index outbox_queue on outbox (queue);

-- Times at which tasks are made.
create table task_schedule (
  name text not null primary key,
  -- Everything that its maker said, as JSON.
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
