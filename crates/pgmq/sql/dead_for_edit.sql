-- Locks a dead letter, so that no claim leases it meanwhile.
-- Plan: Index Scan using {dead_primary_key} on {dead_table}
select msg_id, message, headers, enqueued_at, {schema}.is_leased(vt, read_ct, headers) as is_leased
from {dead} where msg_id = $1 for update
