-- Rows of one priority that nobody else is about to take. They are read whole here and leased by their numbers
-- afterwards, in the same transaction. Nothing is locked that is not taken.
select id, message_id, content_type, headers, ordering_key, priority, deliveries_count, attempts_count,
       timestampdiff(microsecond, '1970-01-01', created_at), timestampdiff(microsecond, '1970-01-01', first_attempt_at),
       timestampdiff(microsecond, '1970-01-01', expires_at), dedup_key, payload,
       timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)),
       timestampdiff(microsecond, '1970-01-01', next_attempt_at)
from {schema}.message force index (message_claim)
where queue = :queue and blocked = 0 and priority = :priority and next_attempt_at between :floor and utc_timestamp(6)
order by next_attempt_at limit :limit for update skip locked
