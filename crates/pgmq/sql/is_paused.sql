-- For a queue without a table.
select exists (select 1 from {schema}.queue_pause where queue = $1) as is_paused
