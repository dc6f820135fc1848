-- Tasks of a type that have been due and on their way for too long. Of those that are due for longest only so many are
-- looked at: they may all have been sent again lately.
-- Plan: SEARCH task USING INDEX task_claim (state=? AND task_type=? AND priority=? AND scheduled_for<?)
select id, task_id, scheduled_for
from (select id, task_id, scheduled_for, enqueued_at from task
      where state in ('PENDING', 'ENQUEUED') and blocked = 0 and state = 'ENQUEUED' and task_type = ?1 and priority = ?2
        and scheduled_for <= ?3
      order by scheduled_for, id limit ?4)
where coalesce(enqueued_at, 0) <= ?3
limit ?5
