-- What transactions of others have left to be put in order.
select id, ordering_key from {schema}.unplaced where queue = :queue limit 1000
