-- A chunk of the oldest, whatever they are: what ended long ago stands among them.
-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid>?)
select id, created_at, state in ('SUCCEEDED', 'CANCELED') and finished_at <= ?2 from task
where id > ?1 order by id limit ?3
