-- `task_list.sql` for DEAD or CANCELED tasks, which have an index.
-- Plan: Index Scan Backward using task_ended on task t
select {task_columns}
from {schema}.task t
where t.state = $3::text::{schema}.task_state and t.state in ('DEAD', 'CANCELED') and t.id < $1 and t.id >= $2
{task_filter}
order by t.id desc limit $11
