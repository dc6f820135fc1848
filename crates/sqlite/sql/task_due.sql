-- Whole rows, because every row that is read is claimed. Without a limit: the caller stops reading when it has enough.
-- Plan: SEARCH task USING INDEX task_claim (state=? AND task_type=? AND priority=? AND scheduled_for<?)
select id, task_id, attempt_count, max_attempts, retry_strategy, ordering_key, tags, created_at, scheduled_for,
       first_started_at, deadline, payload
from task
where state in ('PENDING', 'ENQUEUED') and blocked = 0 and state = ?1 and task_type = ?2 and priority = ?3
  and scheduled_for <= ?4 and (deadline is null or deadline > ?4)
order by scheduled_for, id
