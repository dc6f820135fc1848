-- The clock of leases and due times: the server's, at the start of the statement, so that a transaction that waited for
-- a lock does not use the time at which it began.
create function {schema}.clock() returns timestamptz language sql stable parallel safe
as 'select pg_catalog.statement_timestamp()';

-- Queues that exist. The dead letters of a queue belong to it and have no row of their own.
create table {schema}.queue (
  name text collate "C" not null primary key,
  created_at timestamptz not null default {schema}.clock()
);

-- Paused queues. Not a column of queue, because a queue can be paused before it exists.
create table {schema}.queue_pause (
  queue text collate "C" not null primary key,
  paused_at timestamptz not null default {schema}.clock()
);

-- Two types, so that rows need no checks.
create type {schema}.message_state as enum ('PENDING', 'PROCESSING', 'RETRYABLE');
create type {schema}.archived_state as enum ('COMPLETED', 'FAILED');

-- Live messages, and dead letters (under '{queue}_dlq', with their record in dead_letter).
create table {schema}.message (
  -- Ascends in send order within an ordering key.
  id bigint generated always as identity primary key,
  -- The due time and, while the message is leased, the end of the lease. So an expired lease is simply due.
  next_attempt_at timestamptz not null,
  created_at timestamptz not null,
  first_attempt_at timestamptz,
  last_attempt_at timestamptz,
  acquired_at timestamptz,
  expires_at timestamptz,
  -- Random, new in every claim. While it is set, next_attempt_at is the end of the lease; a separate column for that
  -- cost a twentieth of the rate.
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

-- Matches the claim: one probe a priority, in the order of next_attempt_at, without messages of other queues, blocked
-- ones and ones that are not due.
create index message_claim on {schema}.message (queue, blocked, priority, next_attempt_at);
-- No index on message_id: every claim would rewrite it, for a rare lookup.
-- Partial, so that messages without keys pay nothing.
create index message_key on {schema}.message (queue, ordering_key, id) where ordering_key is not null;
create unique index message_dedup on {schema}.message (queue, dedup_key) where dedup_key is not null;

-- Every message leaves two dead rows, so vacuum runs by their number and at full speed.
alter table {schema}.message set (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000
);

-- Keys and queues that a transaction of a caller has changed without the key's lock, which it could hold for any time.
-- The next claim promotes and lists them.
create table {schema}.unplaced (
  id bigint generated always as identity primary key,
  queue text collate "C" not null,
  ordering_key text collate "C"
);
create index unplaced_queue on {schema}.unplaced (queue);

-- The record of a dead letter. The message stays in its row, under the name of the dead-letter queue.
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
  -- Kept here, because dead letters hold no dedup keys.
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
-- Rows are added in the order of their age, so a BRIN index finds the old ones. A B-tree cost a twelfth of the rate of
-- acks.
create index message_archive_age on {schema}.message_archive using brin (archived_at) with (autosummarize = on);
