-- All messages of the queue by the index.
-- Plan: Index Scan using message_claim on message
select count(*) filter (where next_attempt_at <= {schema}.clock()),
       count(*) filter (where next_attempt_at > {schema}.clock() and lease_token is not null),
       count(*) filter (where next_attempt_at > {schema}.clock() and lease_token is null),
       (select count(*) from {schema}.dead_letter where queue = $1),
       (extract(epoch from {schema}.clock() - min(created_at) filter (where next_attempt_at <= {schema}.clock()))
          * 1000000)::bigint,
       exists (select 1 from {schema}.queue_pause where queue = $1)
from {schema}.message where queue = $1
