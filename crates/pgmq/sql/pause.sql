insert into {schema}.queue_pause (queue) values ($1) on conflict do nothing
