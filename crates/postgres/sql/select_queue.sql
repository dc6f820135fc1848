-- What a purge or a deletion goes through.
-- Plan: Index Scan using message_claim on message
select id, ordering_key from {schema}.message where queue = $1
