-- Failed attempts, the last ones of each message, by queue and message: the sender chooses the id, and two queues can
-- hold messages with the same one. Takes the place of message_attempt, which knows no queue; that table stays for
-- programs of the version before this step, and nothing here reads it any more.
create table failed_attempt (
  -- The queue that the message was sent to, also while it is among the dead letters.
  queue text not null,
  message_id blob not null,
  attempt integer not null,
  started_at integer,
  failed_at integer not null,
  worker text not null,
  error text,
  primary key (queue, message_id, attempt)
) without rowid;

-- The attempts of living and of dead messages. Where two queues hold the id, it is not known whose they are, and neither
-- gets them.
insert into failed_attempt (queue, message_id, attempt, started_at, failed_at, worker, error)
with place (message_id, queue) as (
  select cast(message_id as blob),
         case when substr(queue, -4) = '_dlq' then substr(queue, 1, length(queue) - 4) else queue end
  from message where cast(message_id as blob) in (select message_id from message_attempt)),
single (message_id, queue) as (
  select message_id, min(queue) from place group by message_id having min(queue) = max(queue))
select single.queue, a.message_id, a.attempt, a.started_at, a.failed_at, a.worker, a.error
from single join message_attempt a on a.message_id = single.message_id;
