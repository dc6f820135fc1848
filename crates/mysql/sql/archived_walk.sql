-- Rows of a queue and of its dead letters, newest end first, each with whether it matches the filter. Reads no body,
-- and no row past the limit.
(select timestampdiff(microsecond, '1970-01-01', archived_at) as at, id,
        coalesce((:key is null or ordering_key = :key) and (:state is null or state = :state)
                 and (:path is null or cast(json_unquote(json_extract(headers, :path)) as binary) = :value), false) as is_included
 from {schema}.message_archive force index (message_archive_queue)
 where queue = :queue and archived_at >= :since and archived_at <= :before and (archived_at < :before or id < :row)
 order by archived_at desc, id desc limit :limit)
union all
(select timestampdiff(microsecond, '1970-01-01', archived_at) as at, id,
        coalesce((:key is null or ordering_key = :key) and (:state is null or state = :state)
                 and (:path is null or cast(json_unquote(json_extract(headers, :path)) as binary) = :value), false) as is_included
 from {schema}.message_archive force index (message_archive_queue)
 where queue = :dead and archived_at >= :since and archived_at <= :before and (archived_at < :before or id < :row)
 order by archived_at desc, id desc limit :limit)
order by at desc, id desc limit :limit
