with gone as (delete from {schema}.queue where name = $1), resumed as (
  delete from {schema}.queue_pause where queue in ($1, $2))
delete from {schema}.unplaced where queue = $1
