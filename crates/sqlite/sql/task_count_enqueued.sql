-- Plan: SEARCH task USING COVERING INDEX task_claim (state=? AND task_type=? AND priority=? AND scheduled_for<?)
select count(*) as count
from (select 1 from task
      where state in ('PENDING', 'ENQUEUED') and blocked = 0 and state = 'ENQUEUED' and task_type = ?1
        and priority in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9) and scheduled_for <= ?2
      limit ?3)
