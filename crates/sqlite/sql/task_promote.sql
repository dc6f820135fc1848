-- Makes the first living task of a key its head.
-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid=?)
-- Plan: SEARCH task USING INDEX task_key (task_type=? AND ordering_key=?)
update task set blocked = 0
where id = (select id from task
            where task_type = ?1 and ordering_key = ?2 and ordering_key is not null
              and state in ('PENDING', 'ENQUEUED', 'PROCESSING')
            order by position limit 1)
  and blocked = 1
returning scheduled_for
