-- Who has rows leased, and whether the lease is still valid. In the order of the key, so that two batches never lock each
-- other's rows crosswise.
select id, lease_token, message_id, queue, coalesce(next_attempt_at > utc_timestamp(6), 0), ordering_key,
       attempts_count
from {schema}.message force index (primary) where id in (:ids) order by id :lock
