-- The rows that have an id were looked up before; of these the first in send order that may be received now.
select id, message_id, content_type, headers, ordering_key, priority, deliveries_count, attempts_count,
       timestampdiff(microsecond, '1970-01-01', created_at), timestampdiff(microsecond, '1970-01-01', first_attempt_at),
       timestampdiff(microsecond, '1970-01-01', expires_at), dedup_key, payload,
       timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)),
       timestampdiff(microsecond, '1970-01-01', next_attempt_at)
from {schema}.message force index (primary)
where id in (:ids) and queue = :queue and blocked = 0 and next_attempt_at <= utc_timestamp(6)
  and not exists (select 1 from {schema}.queue_pause where queue = :queue)
order by id limit 1 for update skip locked
