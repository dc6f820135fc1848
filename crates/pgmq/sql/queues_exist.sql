-- The queues that have a table. A listed queue without one cannot be read.
select name from unnest($1::text[]) as name where to_regclass(format('pgmq.%I', 'q_' || name)) is not null
