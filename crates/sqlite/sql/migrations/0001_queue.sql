-- Times are microseconds since the Unix epoch, by the host's clock.

-- Queues that exist. The dead letters of a queue belong to it and have no row of their own.
create table queue (
  name text not null primary key,
  created_at integer not null
) without rowid;

-- Paused queues. A separate table, because a queue can be paused before it exists.
create table queue_pause (
  queue text not null primary key,
  paused_at integer not null
) without rowid;

-- Living messages, and dead letters (in queue '{queue}_dlq', with their record in dead_letter).
create table message (
  -- Ascends in send order. The number of a removed message can be used again; rows that outlive a message refer to
  -- message_id.
  id integer not null primary key,
  queue text not null,
  -- 1 for a message that waits behind the head of its ordering key.
  blocked integer not null,
  priority integer not null,
  -- When the message is due and, while it is leased, when its lease ends. So an expired lease needs no further step.
  next_attempt_at integer not null,
  -- PENDING, PROCESSING or RETRYABLE.
  state text not null,
  -- Half of the lease token; the row number is the other half.
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
  -- A JSON object of strings.
  headers text not null,
  last_error text,
  payload blob not null
);

-- Matches the claim: one probe for each priority, in the order of next_attempt_at, which reads no messages of other
-- queues, none that are blocked and none that are not due.
create index message_claim on message (queue, blocked, priority, next_attempt_at);
-- message_id has no index: it would slow every send and every settle by an eighth, for a rare look-up.
-- Partial, so that messages without keys pay nothing.
create index message_key on message (queue, ordering_key, id) where ordering_key is not null;
create unique index message_dedup on message (queue, dedup_key) where dedup_key is not null;

-- The records of dead letters. The message stays in its row, in the dead-letter queue.
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
  -- Kept here, because a dead letter does not hold its dedup key.
  dedup_key text,
  revision integer not null default 0
);
create index dead_letter_queue on dead_letter (queue, death);
create index dead_letter_message on dead_letter (message_id);

-- The last failed attempts of each message.
create table message_attempt (
  message_id blob not null,
  attempt integer not null,
  started_at integer,
  failed_at integer not null,
  worker text not null,
  error text,
  primary key (message_id, attempt)
) without rowid;

-- Acknowledged messages (COMPLETED), and purged dead letters (FAILED). Rows are added at the end and removed at the
-- beginning only, so they are in the order of age.
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
