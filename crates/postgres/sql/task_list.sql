-- Plan: Index Scan Backward using task_pkey on task t
select {task_columns}
from {schema}.task t
where t.id < $1 and t.id >= $2
  and ($3::text[] is null or t.state::text = any ($3::text[]))
{task_filter}
order by t.id desc limit $11
