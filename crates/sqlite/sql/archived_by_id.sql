-- The search of archived_walk for one message id, which usually has a single row.
-- Plan: SEARCH message_archive USING INDEX message_archive_message (message_id=?)
-- Plan: USE TEMP B-TREE FOR ORDER BY
select archived_at, archive_id,
       coalesce((?7 is null or ordering_key = ?7) and (?8 is null or state = ?8)
                and (?9 is null or case when json_valid(headers) then json_extract(headers, ?9) = ?10 end), 0) as is_included
from message_archive indexed by message_archive_message
where message_id = ?11 and queue in (?1, ?2)
  and archived_at >= ?3 and archived_at <= ?4 and (archived_at < ?4 or archive_id < ?5)
order by archived_at desc, archive_id desc limit ?6
