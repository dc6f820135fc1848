-- The one clock of leases and due times: the server's, at the beginning of a statement, so that a transaction that
-- waited for a lock does not judge by the time at which it began.
create function {schema}.clock() returns timestamptz language sql stable parallel safe
as 'select pg_catalog.statement_timestamp()';

-- Queues that exist. The dead letters of a queue belong to it and have no row of their own.
create table {schema}.queue (
  name text collate "C" not null primary key,
  created_at timestamptz not null default {schema}.clock()
);

-- Queues whose receives are held back. Apart from the queues: a queue can be paused before it exists.
create table {schema}.queue_pause (
  queue text collate "C" not null primary key,
  paused_at timestamptz not null default {schema}.clock()
);

-- Two types, so that no row needs to be checked.
create type {schema}.message_state as enum ('PENDING', 'PROCESSING', 'RETRYABLE');
create type {schema}.archived_state as enum ('COMPLETED', 'FAILED');

-- Messages that live, and dead letters (under '{queue}_dlq', with their record in dead_letter).
create table {schema}.message (
  -- Ascends in send order within an ordering key.
  id bigint generated always as identity primary key,
  -- The one visibility time: when the message is due and, while it is leased, when its lease ends. A lease that has run
  -- out therefore needs nobody's help.
  next_attempt_at timestamptz not null,
  created_at timestamptz not null,
  first_attempt_at timestamptz,
  last_attempt_at timestamptz,
  acquired_at timestamptz,
  expires_at timestamptz,
  -- Chance, drawn anew by every claim. While it is there, next_attempt_at is the end of the lease; a column of its own
  -- for that took a twentieth of the rate.
  lease_token bigint,
  deliveries_count bigint not null default 0,
  attempts_count bigint not null default 0,
  message_id uuid not null,
  state {schema}.message_state not null default 'PENDING',
  priority smallint not null default 4 check (priority between 0 and 9),
  -- True for a message that waits behind the head of its ordering key.
  blocked boolean not null default false,
  queue text collate "C" not null,
  ordering_key text collate "C",
  dedup_key text collate "C",
  -- Null is application/octet-stream.
  content_type text,
  -- An object of texts.
  headers jsonb not null default '{}',
  payload bytea not null,
  last_error text
);

-- Matches the claim exactly: a probe a priority, in the order of next_attempt_at, and never a look at another queue, at
-- a message that waits behind its key, or at one that is not due.
create index message_claim on {schema}.message (queue, blocked, priority, next_attempt_at);
-- None on message_id: every claim would have to write it anew, for a look-up that hardly anybody makes.
-- Partial, so that messages without keys pay nothing.
create index message_key on {schema}.message (queue, ordering_key, id) where ordering_key is not null;
create unique index message_dedup on {schema}.message (queue, dedup_key) where dedup_key is not null;

-- Every message leaves two dead rows behind it, so the hot table is cleaned by their number and at full speed.
alter table {schema}.message set (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000
);

-- Keys and queues that a transaction of somebody else has changed without the key's lock, which it could hold for as
-- long as it likes. Whoever claims next puts them in order.
create table {schema}.unplaced (
  id bigint generated always as identity primary key,
  queue text collate "C" not null,
  ordering_key text collate "C"
);
create index unplaced_queue on {schema}.unplaced (queue);

-- What a dead letter keeps of its life. Its message stays in its row, under the dead-letter queue's name.
create table {schema}.dead_letter (
  -- The order of deaths.
  death bigint generated always as identity primary key,
  id bigint not null unique,
  deliveries_count bigint not null,
  attempts_count bigint not null,
  created_at timestamptz not null,
  first_attempt_at timestamptz,
  last_attempt_at timestamptz,
  dead_at timestamptz not null,
  message_id uuid not null,
  revision bigint not null default 0,
  queue text collate "C" not null,
  reason text not null,
  error text,
  -- Kept here, because the dead do not hold it.
  dedup_key text
);
create index dead_letter_queue on {schema}.dead_letter (queue, death);
create index dead_letter_message on {schema}.dead_letter (message_id);

-- Failed attempts, the last ones of each message.
create table {schema}.message_attempt (
  message_id uuid not null,
  attempt bigint not null,
  started_at timestamptz,
  failed_at timestamptz not null,
  worker text not null,
  error text,
  primary key (message_id, attempt)
);

-- Messages that were acknowledged (COMPLETED), and dead letters that were purged (FAILED).
create table {schema}.message_archive (
  id bigint not null,
  archived_at timestamptz not null,
  created_at timestamptz not null,
  first_attempt_at timestamptz,
  last_attempt_at timestamptz,
  deliveries_count bigint not null,
  attempts_count bigint not null,
  message_id uuid not null,
  state {schema}.archived_state not null,
  priority smallint not null,
  queue text collate "C" not null,
  ordering_key text collate "C",
  content_type text,
  headers jsonb not null,
  payload bytea not null,
  last_error text
);
-- Rows are added in the order of their age, so a few bytes for every stretch of pages find the old ones. A B-tree took
-- a twelfth of the rate of acknowledgements.
create index message_archive_age on {schema}.message_archive using brin (archived_at) with (autosummarize = on);
