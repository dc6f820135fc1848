-- Nothing is written for a queue that is there.
insert into {schema}.queue (name, created_at)
select wanted.name, utc_timestamp(6) from (:names) wanted
where not exists (select 1 from {schema}.queue q where q.name = wanted.name)
on duplicate key update created_at = {schema}.queue.created_at
