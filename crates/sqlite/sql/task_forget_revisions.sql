-- Plan: SEARCH task_revision USING INDEX sqlite_autoindex_task_revision_1 (id=?)
delete from task_revision where id = ?1
