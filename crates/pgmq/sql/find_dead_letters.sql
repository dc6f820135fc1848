-- In the order of deaths, without the bodies.
-- Plan: Index Scan using {dead_primary_key} on {dead_table}
select msg_id, headers from {dead}
where ($1::text is null or {schema}.ours(headers)->'dead'->>'reason' = $1)
  and ($2::text is null or {schema}.ours(headers)->'dead'->>'error' = $2)
order by msg_id
