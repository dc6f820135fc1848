-- Writes nothing if the queue exists. One statement a queue: a list of names would be a temporary table, which takes
-- five times as long.
insert into {schema}.queue (name, created_at)
select :name, utc_timestamp(6) from dual
where not exists (select 1 from {schema}.queue q where q.name = :name)
on duplicate key update created_at = {schema}.queue.created_at
