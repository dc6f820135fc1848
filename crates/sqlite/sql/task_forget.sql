-- Checks the state again, because the row number may belong to another task by now.
-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid=?)
delete from task where id = ?1 and state in ('SUCCEEDED', 'CANCELED') and finished_at <= ?2
