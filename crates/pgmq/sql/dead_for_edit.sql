-- A dead letter, locked, so that nobody leases it while it is changed.
-- Plan: Index Scan using {dead_primary_key} on {dead_table}
select msg_id, message, headers, enqueued_at, {schema}.is_leased(vt, read_ct, headers)
from {dead} where msg_id = $1 for update
