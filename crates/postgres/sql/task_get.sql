-- Plan: Index Scan using task_identity on task t
select {task_columns}, t.payload, t.result
from {schema}.task t
where t.task_id = $1
