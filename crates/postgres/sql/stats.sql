-- Reads all messages of the queue by the index.
-- Plan: Index Scan using message_claim on message
select count(*) filter (where next_attempt_at <= {schema}.clock()) as ready,
       count(*) filter (where next_attempt_at > {schema}.clock() and lease_token is not null) as in_flight,
       count(*) filter (where next_attempt_at > {schema}.clock() and lease_token is null) as delayed,
       (select count(*) from {schema}.dead_letter where queue = $1) as dead,
       (extract(epoch from {schema}.clock() - min(created_at) filter (where next_attempt_at <= {schema}.clock()))
          * 1000000)::bigint as oldest_micros,
       exists (select 1 from {schema}.queue_pause where queue = $1) as is_paused
from {schema}.message where queue = $1
