-- The row at which a page's look ends: a fixed number of rows after its start.
-- Plan: Index Only Scan Backward using task_pkey on task
select id from {schema}.task where id < $1 order by id desc offset $2 limit 1
