-- Who has these dedup keys, and whether they still live: one that has expired and that nobody handles does not. It locks
-- nothing: whoever takes a key in the meantime is met by the insert.
select queue, dedup_key, message_id, id, ordering_key,
       coalesce(expires_at <= utc_timestamp(6) and not (lease_token is not null and next_attempt_at > utc_timestamp(6)),
                0)
from {schema}.message force index (message_dedup) where (queue, dedup_key) in (:keys)
