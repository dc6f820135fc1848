-- The same for tasks of one state that are dead or were called off: they have an index of their own.
-- Plan: Index Only Scan Backward using task_ended on task
select id from {schema}.task
where state = $3::text::{schema}.task_state and state in ('DEAD', 'CANCELED') and id < $1
order by id desc offset $2 limit 1
