-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid=?)
insert into task_revision (id, revision, replaced_at, payload)
select id, revision, ?2, payload from task where id = ?1
