-- Reads all messages of the queue: there is no index by id.
-- Plan: Index Scan using message_claim on message
select id from {schema}.message where queue = $1 and message_id = $2
