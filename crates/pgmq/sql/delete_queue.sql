with paused as (delete from {schema}.queue_pause where queue in ($1, $2)),
     held as (delete from {schema}.dedup where queue = $1),
     aside as (delete from {schema}.delayed where queue = $1)
-- PGMQ writes table names in lower case and records the name as given.
select pgmq.drop_queue(coalesce((select m.queue_name from pgmq.meta m where lower(m.queue_name) = name limit 1), name))
from unnest(array[$1, $2]) as name
where to_regclass(format('pgmq.%I', 'q_' || name)) is not null
