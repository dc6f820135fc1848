-- Times are UTC. Names and keys are bytes: case and trailing spaces count.

-- Queues that exist. The dead letters of a queue belong to it and have no row of their own.
create table if not exists {schema}.queue (
  name varbinary(84) not null primary key,
  created_at datetime(6) not null
) engine = InnoDB;

-- Paused queues. Not a column of queue, because a queue can be paused before it exists.
create table if not exists {schema}.queue_pause (
  queue varbinary(84) not null primary key,
  paused_at datetime(6) not null
) engine = InnoDB;

-- Live messages, and dead letters (under '{queue}_dlq', with their record in dead_letter).
create table if not exists {schema}.message (
  -- Ascends in send order within an ordering key.
  id bigint not null auto_increment primary key,
  -- The due time and, while the message is leased, the end of the lease. So an expired lease is simply due.
  next_attempt_at datetime(6) not null,
  created_at datetime(6) not null,
  first_attempt_at datetime(6),
  last_attempt_at datetime(6),
  acquired_at datetime(6),
  expires_at datetime(6),
  -- Random, new in every claim.
  lease_token bigint,
  lease_expires_at datetime(6) generated always as (case when lease_token is not null then next_attempt_at end) virtual,
  deliveries_count bigint not null default 0,
  attempts_count bigint not null default 0,
  message_id binary(16) not null,
  state enum ('PENDING', 'PROCESSING', 'RETRYABLE') not null default 'PENDING',
  priority tinyint not null default 4 check (priority between 0 and 9),
  -- True for a message that waits behind the head of its ordering key.
  blocked boolean not null default false,
  queue varbinary(84) not null,
  ordering_key varbinary(128),
  dedup_key varbinary(128),
  -- Null is application/octet-stream.
  content_type varchar(255) character set utf8mb4 collate utf8mb4_bin,
  -- A JSON object of texts.
  headers mediumtext character set utf8mb4 collate utf8mb4_bin not null,
  payload longblob not null,
  last_error mediumtext character set utf8mb4 collate utf8mb4_bin,
  -- Matches the claim: one probe a priority, in the order of next_attempt_at, without messages of other queues, blocked
  -- ones and ones that are not due.
  index message_claim (queue, blocked, priority, next_attempt_at),
  -- The head of a key and the first message behind it are one probe each.
  index message_key (queue, ordering_key, blocked, id),
  unique index message_dedup (queue, dedup_key)
  -- In this row format a null time or token has reserved space, so a lease changes a row in place. In the others every
  -- lease makes rows longer, pages overflow, and the update takes twice as long.
) engine = InnoDB row_format = redundant;

-- The locks of ordering keys: who adds to a key or removes its head holds the row of the key's stripe.
create table if not exists {schema}.stripe (
  id smallint not null primary key
) engine = InnoDB;

insert ignore into {schema}.stripe (id)
with recursive numbers (n) as (select 0 union all select n + 1 from numbers where n < 255) select n from numbers;

-- Keys and queues that a transaction of a caller has changed without the key's lock, which it could hold for any time.
-- The next claim promotes and lists them.
create table if not exists {schema}.unplaced (
  id bigint not null auto_increment primary key,
  queue varbinary(84) not null,
  ordering_key varbinary(128),
  index unplaced_queue (queue)
) engine = InnoDB;

-- The record of a dead letter. The message stays in its row, under the name of the dead-letter queue.
create table if not exists {schema}.dead_letter (
  -- The order of deaths.
  death bigint not null auto_increment primary key,
  id bigint not null,
  deliveries_count bigint not null,
  attempts_count bigint not null,
  created_at datetime(6) not null,
  first_attempt_at datetime(6),
  last_attempt_at datetime(6),
  dead_at datetime(6) not null,
  message_id binary(16) not null,
  revision bigint not null default 0,
  queue varbinary(84) not null,
  reason varchar(255) character set utf8mb4 collate utf8mb4_bin not null,
  error mediumtext character set utf8mb4 collate utf8mb4_bin,
  -- Kept here, because dead letters hold no dedup keys.
  dedup_key varbinary(128),
  unique index dead_letter_id (id),
  index dead_letter_queue (queue, death),
  index dead_letter_message (message_id)
) engine = InnoDB;

-- Failed attempts, the last ones of each message.
create table if not exists {schema}.message_attempt (
  message_id binary(16) not null,
  attempt bigint not null,
  started_at datetime(6),
  failed_at datetime(6) not null,
  worker varchar(255) character set utf8mb4 collate utf8mb4_bin not null,
  error mediumtext character set utf8mb4 collate utf8mb4_bin,
  primary key (message_id, attempt)
) engine = InnoDB;

-- Messages that were acknowledged (COMPLETED), and dead letters that were purged (FAILED). Rows are added in the order
-- of their age, and the oldest are removed first.
create table if not exists {schema}.message_archive (
  archived_at datetime(6) not null,
  id bigint not null,
  created_at datetime(6) not null,
  first_attempt_at datetime(6),
  last_attempt_at datetime(6),
  deliveries_count bigint not null,
  attempts_count bigint not null,
  message_id binary(16) not null,
  state enum ('COMPLETED', 'FAILED') not null,
  priority tinyint not null,
  queue varbinary(84) not null,
  ordering_key varbinary(128),
  content_type varchar(255) character set utf8mb4 collate utf8mb4_bin,
  headers mediumtext character set utf8mb4 collate utf8mb4_bin not null,
  payload longblob not null,
  last_error mediumtext character set utf8mb4 collate utf8mb4_bin,
  primary key (archived_at, id)
) engine = InnoDB;
