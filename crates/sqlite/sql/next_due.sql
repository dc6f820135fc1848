-- When the next message becomes due after ?2: one probe for each priority.
-- Plan: SEARCH message USING COVERING INDEX message_claim (queue=? AND blocked=? AND priority=? AND next_attempt_at>?)
with urgency (priority) as (values (9), (8), (7), (6), (5), (4), (3), (2), (1), (0))
select min((select next_attempt_at from message
            where queue = ?1 and blocked = 0 and priority = urgency.priority and next_attempt_at > ?2
            order by next_attempt_at limit 1)) as next_due
from urgency
