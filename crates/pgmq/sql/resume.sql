delete from {schema}.queue_pause where queue = $1
