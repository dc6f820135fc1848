-- Where a page's look ends at the latest: so many rows before its beginning.
-- Plan: Index Only Scan Backward using task_pkey on task
select id from {schema}.task where id < $1 order by id desc offset $2 limit 1
