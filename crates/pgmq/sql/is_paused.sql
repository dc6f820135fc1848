-- Of a queue that has no table.
select exists (select 1 from {schema}.queue_pause where queue = $1)
