-- Reads all messages of the queue: there is no index by id. Only the caller can derive the ids of foreign messages.
-- Plan: Index Scan using {primary_key} on {table}
select msg_id, {schema}.ours(headers)->>'id' is null as is_foreign
from {queue} where coalesce({schema}.ours(headers)->>'id', $1) = $1 order by msg_id
