-- The number of messages of a queue, up to the limit.
-- Plan: Index Only Scan using message_claim on message
select count(*) from (select 1 from {schema}.message where queue = $1 limit $2) found
