-- Who has this dedup key now, whatever a caller's transaction has seen before, and whether it still lives.
select message_id, id, ordering_key,
       coalesce(expires_at <= utc_timestamp(6) and not (lease_token is not null and next_attempt_at > utc_timestamp(6)),
                0)
from {schema}.message force index (message_dedup)
where queue = :queue and dedup_key = :dedup_key lock in share mode
