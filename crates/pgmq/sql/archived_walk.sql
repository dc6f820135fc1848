-- Rows of an archive, newest end first, each with its stored id and whether it matches the filter. Only the caller can
-- derive the ids of foreign messages. A message that another client archived has no state and counts as acknowledged.
-- Plan: Index Scan Backward using {archive_index} on {archive_table}
select archived_at, msg_id, {schema}.ours(headers)->>'id' as message_id,
       coalesce(($5::text is null or headers->>'x-pgmq-group' = $5)
                and ($6::text is null or coalesce({schema}.ours(headers)->>'state', 'COMPLETED') = $6)
                and ($7::text is null
                     or coalesce({schema}.ours(headers)->'headers'->>$7,
                                 case when $7 <> 'x-pgmq-group' then headers->>$7 end) = $8::text), false) as is_included
from {archive}
where archived_at >= $1 and archived_at <= $2 and (archived_at < $2 or msg_id < $3)
order by archived_at desc, msg_id desc limit $4
