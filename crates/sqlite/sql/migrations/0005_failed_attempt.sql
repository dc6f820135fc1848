-- The last failed attempts of each message, by queue and message id: the sender chooses the id, so two queues can hold
-- messages with the same one. Replaces message_attempt, which has no queue; that table stays for programs of older
-- versions, and this program does not read it.
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

-- Copies the attempts of living and dead messages. If two queues hold the id, it is unknown whose attempts they are,
-- and neither gets them.
insert into failed_attempt (queue, message_id, attempt, started_at, failed_at, worker, error)
with location (message_id, queue) as (
  select cast(message_id as blob),
         case when substr(queue, -4) = '_dlq' then substr(queue, 1, length(queue) - 4) else queue end
  from message where cast(message_id as blob) in (select message_id from message_attempt)),
single (message_id, queue) as (
  select message_id, min(queue) from location group by message_id having min(queue) = max(queue))
select single.queue, a.message_id, a.attempt, a.started_at, a.failed_at, a.worker, a.error
from single join message_attempt a on a.message_id = single.message_id;
