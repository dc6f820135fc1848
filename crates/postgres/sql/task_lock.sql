-- Locks the tasks of a batch that is carried out by several statements, in the order of their ids: otherwise each of them
-- would begin again with the lowest, and meet crosswise somebody who has one batch of the same tasks.
-- Plan: Index Scan using task_identity on task t
select 1
from unnest($1::uuid[], $2::bigint[]) as s (task_id, lease_token) join {schema}.task t on t.task_id = s.task_id
where t.state::text = 'PROCESSING' and t.lease_token = s.lease_token
for update of t
