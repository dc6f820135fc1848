-- Times are microseconds since the Unix epoch, by the host's clock.

-- Queues that exist. The dead letters of a queue belong to it and have no row of their own.
create table queue (
  name text not null primary key,
  created_at integer not null
) without rowid;

-- Queues whose receives are held back. Apart from the queues: a queue can be paused before it exists.
create table queue_pause (
  queue text not null primary key,
  paused_at integer not null
) without rowid;

-- Messages that live, and dead letters (under '{queue}_dlq', with their record in dead_letter).
create table message (
  -- Ascends in send order. The number of a removed message can come again; what outlives a message goes by message_id.
  id integer not null primary key,
  queue text not null,
  -- 1 for a message that waits behind the head of its ordering key.
  blocked integer not null,
  priority integer not null,
  -- The one visibility time: when the message is due and, while it is leased, when its lease ends. A lease that has run
  -- out therefore needs nobody's help.
  next_attempt_at integer not null,
  -- PENDING, PROCESSING or RETRYABLE.
  state text not null,
  -- Half of the receipt's token; the row number is the other half.
  lease_token integer,
  lease_expires_at integer generated always as (case when lease_token is not null then next_attempt_at end) virtual,
  deliveries_count integer not null default 0,
  attempts_count integer not null default 0,
  created_at integer not null,
  first_attempt_at integer,
  last_attempt_at integer,
  acquired_at integer,
  expires_at integer,
  message_id blob not null,
  ordering_key text,
  dedup_key text,
  -- Null is application/octet-stream.
  content_type text,
  -- A JSON object of texts.
  headers text not null,
  last_error text,
  payload blob not null
);

-- Matches the claim exactly: a probe a priority, in the order of next_attempt_at, and never a look at another queue, at
-- a message that waits behind its key, or at one that is not due.
create index message_claim on message (queue, blocked, priority, next_attempt_at);
-- None on message_id: it would cost every send and every settle an eighth of its speed, for a look-up that hardly
-- anybody makes.
-- Partial, so that messages without keys pay nothing.
create index message_key on message (queue, ordering_key, id) where ordering_key is not null;
create unique index message_dedup on message (queue, dedup_key) where dedup_key is not null;

-- What a dead letter keeps of its life. Its message stays in its row, under the dead-letter queue's name.
create table dead_letter (
  -- The order of deaths.
  death integer not null primary key autoincrement,
  id integer not null unique,
  message_id blob not null,
  queue text not null,
  reason text not null,
  error text,
  deliveries_count integer not null,
  attempts_count integer not null,
  created_at integer not null,
  first_attempt_at integer,
  last_attempt_at integer,
  dead_at integer not null,
  -- Kept here, because the dead do not hold it.
  dedup_key text,
  revision integer not null default 0
);
create index dead_letter_queue on dead_letter (queue, death);
create index dead_letter_message on dead_letter (message_id);

-- Failed attempts, the last ones of each message.
create table message_attempt (
  message_id blob not null,
  attempt integer not null,
  started_at integer,
  failed_at integer not null,
  worker text not null,
  error text,
  primary key (message_id, attempt)
) without rowid;

-- Messages that were acknowledged (COMPLETED), and dead letters that were purged (FAILED). Rows are only ever added at
-- the end and removed at the beginning, so their order is their age and no index is needed.
create table message_archive (
  archive_id integer not null primary key,
  id integer not null,
  queue text not null,
  state text not null,
  priority integer not null,
  deliveries_count integer not null,
  attempts_count integer not null,
  created_at integer not null,
  first_attempt_at integer,
  last_attempt_at integer,
  archived_at integer not null,
  message_id blob not null,
  ordering_key text,
  content_type text,
  headers text not null,
  last_error text,
  payload blob not null
);
