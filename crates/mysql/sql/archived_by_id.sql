-- `archived_walk.sql` for the messages with an id, usually one.
select timestampdiff(microsecond, '1970-01-01', archived_at) as at, id,
       coalesce((:key is null or ordering_key = :key) and (:state is null or state = :state)
                 and (:path is null or cast(json_unquote(json_extract(headers, :path)) as binary) = :value), false) as is_included
from {schema}.message_archive force index (message_archive_message)
where message_id = :message_id and queue in (:queue, :dead) and archived_at >= :since and archived_at <= :before
  and (archived_at < :before or id < :row)
order by archived_at desc, id desc limit :limit
