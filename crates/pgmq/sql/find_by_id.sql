-- There is no index for it: all messages of the queue are looked at. The ids of messages that others have sent are
-- derived from their numbers, which only the caller can do.
-- Plan: Index Scan using {primary_key} on {table}
select msg_id, {schema}.ours(headers)->>'id' is null
from {queue} where coalesce({schema}.ours(headers)->>'id', $1) = $1 order by msg_id
