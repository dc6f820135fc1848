-- Locks the tasks of a batch that several statements end, in the order of their ids. Each statement would otherwise
-- begin again with the lowest id, and could deadlock with a batch of the same tasks.
-- Plan: Index Scan using task_identity on task t
select 1
from unnest($1::uuid[], $2::bigint[]) as s (task_id, lease_token) join {schema}.task t on t.task_id = s.task_id
where t.state::text = 'PROCESSING' and t.lease_token = s.lease_token
for update of t
