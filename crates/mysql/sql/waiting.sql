-- Locks the first of these rows, with whether it is leased.
select id, ordering_key, lease_token is not null and next_attempt_at > utc_timestamp(6) as is_leased,
       timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) as server_time
from {schema}.message force index (primary)
where id in (:ids) and queue = :queue and message_id = :message_id order by id limit 1 for update
