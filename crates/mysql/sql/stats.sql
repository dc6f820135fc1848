-- Reads all messages of the queue by the index.
select coalesce(sum(next_attempt_at <= utc_timestamp(6)), 0) as ready,
       coalesce(sum(next_attempt_at > utc_timestamp(6) and lease_token is not null), 0) as in_flight,
       coalesce(sum(next_attempt_at > utc_timestamp(6) and lease_token is null), 0) as delayed_count,
       (select count(*) from {schema}.dead_letter where queue = :queue) as dead,
       timestampdiff(microsecond, min(case when next_attempt_at <= utc_timestamp(6) then created_at end),
                     utc_timestamp(6)) as oldest_micros,
       exists (select 1 from {schema}.queue_pause where queue = :queue) as is_paused
from {schema}.message force index (message_claim) where queue = :queue
