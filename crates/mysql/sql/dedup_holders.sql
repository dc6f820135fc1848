-- The holders of these dedup keys, and whether each has expired and is not leased. Locks nothing: the insert finds out
-- whether a key was taken meanwhile.
select queue, dedup_key, message_id, id, ordering_key,
       coalesce(expires_at <= utc_timestamp(6) and not (lease_token is not null and next_attempt_at > utc_timestamp(6)),
                0) as has_expired
from {schema}.message force index (message_dedup) where (queue, dedup_key) in (:keys)
