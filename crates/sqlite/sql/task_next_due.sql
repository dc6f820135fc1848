-- When the next task of a type in a state becomes due after ?3: one probe for each priority.
-- Plan: SEARCH task USING COVERING INDEX task_claim (state=? AND task_type=? AND priority=? AND scheduled_for>?)
with urgency (priority) as (values (9), (8), (7), (6), (5), (4), (3), (2), (1), (0))
select min((select scheduled_for from task
            where state in ('PENDING', 'ENQUEUED') and blocked = 0 and state = ?1 and task_type = ?2
              and priority = urgency.priority and scheduled_for > ?3
            order by scheduled_for limit 1)) as next_due
from urgency
