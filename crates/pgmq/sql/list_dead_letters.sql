-- In the order of deaths.
-- Plan: Index Scan using {dead_primary_key} on {dead_table}
select msg_id, message, headers, enqueued_at, {schema}.is_leased(vt, read_ct, headers) as is_leased
from {dead}
where msg_id > $1 and ($2::text is null or {schema}.ours(headers)->'dead'->>'reason' = $2)
order by msg_id limit $3
