with paused as (delete from {schema}.queue_pause where queue in ($1, $2)),
     held as (delete from {schema}.dedup where queue = $1),
     aside as (delete from {schema}.delayed where queue = $1)
select pgmq.drop_queue(name) from unnest(array[$1, $2]) as name
where to_regclass(format('pgmq.%I', 'q_' || name)) is not null
