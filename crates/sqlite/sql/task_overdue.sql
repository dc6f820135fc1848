-- Plan: SEARCH task USING INDEX task_deadline (deadline>? AND deadline<?)
select id from task
where deadline <= ?1 and deadline is not null and state in ('PENDING', 'ENQUEUED', 'PROCESSING')
order by deadline limit ?2
