-- There is no index for it: all messages of the queue are looked at.
-- Plan: Index Scan using message_claim on message
select id from {schema}.message where queue = $1 and message_id = $2
