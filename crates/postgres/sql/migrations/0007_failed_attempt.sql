-- Failed attempts, the last ones of each message, by queue and message id: senders choose ids, and two queues can hold
-- the same one. It replaces message_attempt, which has no queue; that table stays for programs of the version before
-- this migration.
create table {schema}.failed_attempt (
  -- The queue of the send, also while the message is dead-lettered.
  queue text collate "C" not null,
  message_id uuid not null,
  attempt bigint not null,
  started_at timestamptz,
  failed_at timestamptz not null,
  worker text not null,
  error text,
  primary key (queue, message_id, attempt)
);

-- The attempts of live messages and dead letters. Where two queues hold the id, the owner is unknown and the attempts
-- are dropped.
insert into {schema}.failed_attempt (queue, message_id, attempt, started_at, failed_at, worker, error)
select single.queue, a.message_id, a.attempt, a.started_at, a.failed_at, a.worker, a.error
from (
  select m.message_id, min(regexp_replace(m.queue, '_dlq$', '')) as queue from {schema}.message m
  where m.message_id in (select message_id from {schema}.message_attempt)
  group by m.message_id
  having min(regexp_replace(m.queue, '_dlq$', '')) = max(regexp_replace(m.queue, '_dlq$', ''))) single
join {schema}.message_attempt a on a.message_id = single.message_id;
