-- Keys that transactions of callers left to be promoted, and queues that they created.
-- Plan: Index Scan using unplaced_queue on unplaced
select id, ordering_key from {schema}.unplaced where queue = $1 limit 1000
