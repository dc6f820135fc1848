-- Times are UTC. Names and keys are bytes: two that differ in a letter's case, or in a space at the end, are two.

-- Queues that exist. The dead letters of a queue belong to it and have no row of their own.
create table if not exists {schema}.queue (
  name varbinary(84) not null primary key,
  created_at datetime(6) not null
) engine = InnoDB;

-- Queues whose receives are held back. Apart from the queues: a queue can be paused before it exists.
create table if not exists {schema}.queue_pause (
  queue varbinary(84) not null primary key,
  paused_at datetime(6) not null
) engine = InnoDB;

-- Messages that live, and dead letters (under '{queue}_dlq', with their record in dead_letter).
create table if not exists {schema}.message (
  -- Ascends in send order within an ordering key.
  id bigint not null auto_increment primary key,
  -- The one visibility time: when the message is due and, while it is leased, when its lease ends. A lease that has run
  -- out therefore needs nobody's help.
  next_attempt_at datetime(6) not null,
  created_at datetime(6) not null,
  first_attempt_at datetime(6),
  last_attempt_at datetime(6),
  acquired_at datetime(6),
  expires_at datetime(6),
  -- Chance, drawn anew by every claim.
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
  -- Matches the claim exactly: a probe a priority, in the order of next_attempt_at, and never a look at another queue,
  -- at a message that waits behind its key, or at one that is not due.
  index message_claim (queue, blocked, priority, next_attempt_at),
  -- The head of a key and the first behind it are one probe each.
  index message_key (queue, ordering_key, blocked, id),
  unique index message_dedup (queue, dedup_key)
  -- In this format a time or a token that is null has its room already, so that a lease changes a row in place. In the
  -- others every lease makes rows longer, the pages overflow, and the update takes twice as long.
) engine = InnoDB row_format = redundant;

-- The locks of ordering keys: whoever adds to a key, or takes its head away, holds the row of the key's stripe.
create table if not exists {schema}.stripe (
  id smallint not null primary key
) engine = InnoDB;

insert ignore into {schema}.stripe (id)
with recursive numbers (n) as (select 0 union all select n + 1 from numbers where n < 255) select n from numbers;

-- Keys and queues that a transaction of somebody else has changed without the key's lock, which it could hold for as
-- long as it likes. Whoever claims next puts them in order.
create table if not exists {schema}.unplaced (
  id bigint not null auto_increment primary key,
  queue varbinary(84) not null,
  ordering_key varbinary(128),
  index unplaced_queue (queue)
) engine = InnoDB;

-- What a dead letter keeps of its life. Its message stays in its row, under the dead-letter queue's name.
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
  -- Kept here, because the dead do not hold it.
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
-- of their age, and the oldest go first.
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
