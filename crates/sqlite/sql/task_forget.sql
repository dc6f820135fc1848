-- Asked again: the row may be another's by now.
-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid=?)
delete from task where id = ?1 and state in ('SUCCEEDED', 'CANCELED') and finished_at <= ?2
