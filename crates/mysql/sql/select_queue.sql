-- What a purge or a deletion goes through.
select id, ordering_key from {schema}.message where queue = :queue
