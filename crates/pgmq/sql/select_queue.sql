-- All messages of a queue, for a purge. Delayed ones have negative numbers.
-- Plan: Index Only Scan using {primary_key} on {table}
-- Plan: Index Scan using delayed_queue on delayed
select msg_id from {queue}
union all
select -id as msg_id from {schema}.delayed where queue = $1
