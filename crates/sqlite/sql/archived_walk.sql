-- Rows of a queue and of its dead letters, newest first, each with whether the filter includes it. Reads no bodies, and
-- no rows beyond the limit.
-- Plan: MERGE (UNION ALL)
-- Plan: SEARCH message_archive USING INDEX message_archive_queue (queue=? AND archived_at>? AND archived_at<?)
select archived_at, archive_id,
       coalesce((?7 is null or ordering_key = ?7) and (?8 is null or state = ?8)
                and (?9 is null or case when json_valid(headers) then json_extract(headers, ?9) = ?10 end), 0) as is_included
from message_archive
where queue = ?1 and archived_at >= ?3 and archived_at <= ?4 and (archived_at < ?4 or archive_id < ?5)
union all
select archived_at, archive_id,
       coalesce((?7 is null or ordering_key = ?7) and (?8 is null or state = ?8)
                and (?9 is null or case when json_valid(headers) then json_extract(headers, ?9) = ?10 end), 0) as is_included
from message_archive
where queue = ?2 and archived_at >= ?3 and archived_at <= ?4 and (archived_at < ?4 or archive_id < ?5)
order by 1 desc, 2 desc limit ?6
