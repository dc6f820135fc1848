-- What a purge goes through. What is kept aside has a negative number.
-- Plan: Index Only Scan using {primary_key} on {table}
-- Plan: Index Scan using delayed_queue on delayed
select msg_id from {queue}
union all
select -id from {schema}.delayed where queue = $1
