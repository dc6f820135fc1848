-- Plan: SEARCH task USING INDEX task_claim (state=? AND task_type=? AND priority=? AND scheduled_for<?)
select id, task_id from task
where state in ('PENDING', 'ENQUEUED') and blocked = 0 and state = 'PENDING' and task_type = ?1 and priority = ?2
  and scheduled_for <= ?3 and (deadline is null or deadline > ?3)
order by scheduled_for, id limit ?4
