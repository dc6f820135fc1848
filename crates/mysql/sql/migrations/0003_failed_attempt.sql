-- Failed attempts, the last ones of each message, by queue and message id: senders choose ids, and two queues can hold
-- the same one. It replaces message_attempt, which has no queue; that table stays for programs of the version before
-- this migration.
create table if not exists {schema}.failed_attempt (
  -- The queue of the send, also while the message is dead-lettered.
  queue varbinary(84) not null,
  message_id binary(16) not null,
  attempt bigint not null,
  started_at datetime(6),
  failed_at datetime(6) not null,
  worker varchar(255) character set utf8mb4 collate utf8mb4_bin not null,
  error mediumtext character set utf8mb4 collate utf8mb4_bin,
  primary key (queue, message_id, attempt)
) engine = InnoDB;

-- The attempts of live messages and dead letters. Where two queues hold the id, the owner is unknown and the attempts
-- are dropped.
insert ignore into {schema}.failed_attempt (queue, message_id, attempt, started_at, failed_at, worker, error)
with place (message_id, queue) as (
  select m.message_id, if(right(m.queue, 4) = '_dlq', left(m.queue, length(m.queue) - 4), m.queue)
  from {schema}.message m
  where exists (select 1 from {schema}.message_attempt a where a.message_id = m.message_id)),
single (message_id, queue) as (
  select message_id, min(queue) from place group by message_id having min(queue) = max(queue))
select single.queue, a.message_id, a.attempt, a.started_at, a.failed_at, a.worker, a.error
from single join {schema}.message_attempt a on a.message_id = single.message_id;
