-- Plan: Index Scan using task_identity on task t
-- Plan: Index Scan using task_revision_pkey on task_revision r
select r.revision, r.payload, r.replaced_at
from {schema}.task t join {schema}.task_revision r on r.id = t.id
where t.task_id = $1
order by r.revision
