-- Which of these have a table. What is listed and has none cannot be read.
select name from unnest($1::text[]) as name where to_regclass(format('pgmq.%I', 'q_' || name)) is not null
