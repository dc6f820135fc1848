-- The first of these rows that is there, and whether a worker has it.
select id, ordering_key, lease_token is not null and next_attempt_at > utc_timestamp(6),
       timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))
from {schema}.message force index (primary)
where id in (:ids) and queue = :queue and message_id = :message_id order by id limit 1 for update
