-- `task_list_end.sql` for DEAD or CANCELED tasks, which have an index.
-- Plan: Index Only Scan Backward using task_ended on task
select id from {schema}.task
where state = $3::text::{schema}.task_state and state in ('DEAD', 'CANCELED') and id < $1
order by id desc offset $2 limit 1
