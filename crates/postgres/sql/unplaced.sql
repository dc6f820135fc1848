-- What transactions of others have left to be put in order.
-- Plan: Index Scan using unplaced_queue on unplaced
select id, ordering_key from {schema}.unplaced where queue = $1 limit 1000
