-- Failed attempts, the last ones of each message, by queue and message: the sender chooses the id, and two queues can
-- hold messages with the same one. Takes the place of message_attempt, which knows no queue; that table stays for
-- programs of the version before this step, and nothing here reads it any more.
create table {schema}.failed_attempt (
  -- The queue that the message was sent to, also while it is among the dead letters.
  queue text collate "C" not null,
  message_id uuid not null,
  attempt bigint not null,
  started_at timestamptz,
  failed_at timestamptz not null,
  worker text not null,
  error text,
  primary key (queue, message_id, attempt)
);

-- The attempts of living and of dead messages. Where two queues hold the id, it is not known whose they are, and neither
-- gets them.
insert into {schema}.failed_attempt (queue, message_id, attempt, started_at, failed_at, worker, error)
select single.queue, a.message_id, a.attempt, a.started_at, a.failed_at, a.worker, a.error
from (
  select m.message_id, min(regexp_replace(m.queue, '_dlq$', '')) as queue from {schema}.message m
  where m.message_id in (select message_id from {schema}.message_attempt)
  group by m.message_id
  having min(regexp_replace(m.queue, '_dlq$', '')) = max(regexp_replace(m.queue, '_dlq$', ''))) single
join {schema}.message_attempt a on a.message_id = single.message_id;
