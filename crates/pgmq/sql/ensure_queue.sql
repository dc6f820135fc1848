-- Creates only missing queues: a user of a queue need not have the right to create one.
select pgmq.create(name) from unnest(array[$1, $2]::text[]) as name
where to_regclass(format('pgmq.%I', 'q_' || name)) is null
