-- Plan: Index Scan using {archive_primary_key} on {archive_table}
select msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers, archived_at,
       {schema}.ours(headers)->>'state' is not distinct from 'FAILED' as is_failed
from {archive} where msg_id = any ($1::bigint[])
