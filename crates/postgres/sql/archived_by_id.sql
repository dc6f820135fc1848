-- `archived_walk.sql` for the messages with an id, usually one. `|| ''` keeps the planner from walking the queue's
-- archive.
-- Plan: Index Scan using message_archive_message on message_archive
select archived_at, id, coalesce(($7::text is null or ordering_key = $7) and ($8::text is null or state::text = $8)
                         and ($9::text is null or headers->>$9 = $10::text), false) as is_included
from {schema}.message_archive
where message_id = $11 and queue || '' in ($1::text, $2::text) and archived_at >= $3
  and (archived_at, id) < ($4::timestamptz, $5::bigint)
order by archived_at desc, id desc limit $6
