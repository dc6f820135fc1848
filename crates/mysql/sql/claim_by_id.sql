-- Locks the first message, in send order, of these rows that can be claimed now.
select {claimed}
from {schema}.message force index (primary)
where id in (:ids) and queue = :queue and blocked = 0 and next_attempt_at <= utc_timestamp(6)
  and not exists (select 1 from {schema}.queue_pause where queue = :queue)
order by id limit 1 for update skip locked
