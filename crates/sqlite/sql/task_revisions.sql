-- Plan: SEARCH task USING COVERING INDEX task_identity (task_id=?)
-- Plan: SEARCH r USING INDEX sqlite_autoindex_task_revision_1 (id=?)
select r.revision, r.payload, r.replaced_at
from task join task_revision r on r.id = task.id
where task.task_id = ?1 order by r.revision
