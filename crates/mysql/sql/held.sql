-- The leases of rows, and whether they are valid. In the order of the primary key, so that two batches cannot deadlock.
select id, lease_token, message_id, queue, coalesce(next_attempt_at > utc_timestamp(6), 0) as is_valid, ordering_key,
       attempts_count
from {schema}.message force index (primary) where id in (:ids) order by id :lock
