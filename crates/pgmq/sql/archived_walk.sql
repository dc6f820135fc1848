-- Rows of an archive, newest end first, each with whether the search includes it and with the id that it says it has: the
-- ids of messages that others have sent are derived from their numbers, which only the caller can do. A message
-- that another client has archived does not say how it ended, and counts as acknowledged.
-- Plan: Index Scan Backward using {archive_index} on {archive_table}
select archived_at, msg_id, {schema}.ours(headers)->>'id',
       coalesce(($5::text is null or headers->>'x-pgmq-group' = $5)
                and ($6::text is null or coalesce({schema}.ours(headers)->>'state', 'COMPLETED') = $6)
                and ($7::text is null
                     or coalesce({schema}.ours(headers)->'headers'->>$7,
                                 case when $7 <> 'x-pgmq-group' then headers->>$7 end) = $8::text), false)
from {archive}
where archived_at >= $1 and archived_at <= $2 and (archived_at < $2 or msg_id < $3)
order by archived_at desc, msg_id desc limit $4
