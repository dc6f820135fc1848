-- Keys that transactions of callers left to be promoted, and queues that they created.
select id, ordering_key from {schema}.unplaced where queue = :queue limit 1000
