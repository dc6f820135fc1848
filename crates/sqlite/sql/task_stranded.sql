-- Tasks of a type that were due and enqueued before ?3. Searches at most ?4 of the tasks that are due for longest,
-- because all of them may have been sent again recently.
-- Plan: SEARCH task USING INDEX task_claim (state=? AND task_type=? AND priority=? AND scheduled_for<?)
select id, task_id, scheduled_for
from (select id, task_id, scheduled_for, enqueued_at from task
      where state in ('PENDING', 'ENQUEUED') and blocked = 0 and state = 'ENQUEUED' and task_type = ?1 and priority = ?2
        and scheduled_for <= ?3
      order by scheduled_for, id limit ?4)
where coalesce(enqueued_at, 0) <= ?3
limit ?5
