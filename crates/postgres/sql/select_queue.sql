-- All messages of a queue, for a purge or a deletion.
-- Plan: Index Scan using message_claim on message
select id, ordering_key from {schema}.message where queue = $1
