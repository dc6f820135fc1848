-- The next type with claimable tasks in a state: called repeatedly, it skips from type to type.
-- Plan: SEARCH task USING COVERING INDEX task_claim (state=? AND task_type>?)
select min(task_type) as task_type from task
where state in ('PENDING', 'ENQUEUED') and blocked = 0 and state = ?1 and task_type > ?2
