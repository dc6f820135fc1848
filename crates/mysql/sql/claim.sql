-- Locks due rows of one priority that no other transaction has locked. They are leased by their ids afterwards, in the
-- same transaction. Only rows that are taken are locked.
select {claimed}
from {schema}.message force index (message_claim)
where queue = :queue and blocked = 0 and priority = :priority and next_attempt_at between :floor and utc_timestamp(6)
order by next_attempt_at limit :limit for update skip locked
