-- All messages of a queue, for a purge or a deletion.
select id, ordering_key from {schema}.message where queue = :queue
