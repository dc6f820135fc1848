-- The priorities of a type that have due tasks in a state: one probe each, which reads no tasks that are not due or of
-- other types. Ignores deadlines, which are not in the index.
-- Plan: SEARCH task EXISTS USING COVERING INDEX task_claim (state=? AND task_type=? AND priority=? AND scheduled_for<?)
with urgency (priority) as (values (9), (8), (7), (6), (5), (4), (3), (2), (1), (0))
select priority from urgency
where exists (select 1 from task
              where state in ('PENDING', 'ENQUEUED') and blocked = 0 and state = ?1 and task_type = ?2
                and priority = urgency.priority and scheduled_for <= ?3)
