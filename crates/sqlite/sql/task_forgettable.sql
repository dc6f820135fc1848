-- A chunk of the oldest tasks in any state; the tasks that ended long ago are among them.
-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid>?)
select id, created_at, state in ('SUCCEEDED', 'CANCELED') and finished_at <= ?2 as is_forgettable from task
where id > ?1 order by id limit ?3
