-- The last position of a key; null if no living task has the key.
-- Plan: SEARCH task USING INDEX task_key (task_type=? AND ordering_key=?)
select max(position) as tail from task
where task_type = ?1 and ordering_key = ?2 and ordering_key is not null
  and state in ('PENDING', 'ENQUEUED', 'PROCESSING')
