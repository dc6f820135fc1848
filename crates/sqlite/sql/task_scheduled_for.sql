-- Plan: SEARCH task USING INTEGER PRIMARY KEY (rowid=?)
select scheduled_for from task where id = ?1
