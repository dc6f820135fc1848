-- The dead letters with these ids, and foreign ones, whose ids only the caller can derive.
-- Plan: Index Scan using {dead_primary_key} on {dead_table}
select msg_id, message, headers, enqueued_at, {schema}.is_leased(vt, read_ct, headers) as is_leased
from {dead}
where msg_id > $1 and ({schema}.ours(headers)->>'id' = any ($2::text[]) or {schema}.ours(headers)->>'id' is null)
order by msg_id
