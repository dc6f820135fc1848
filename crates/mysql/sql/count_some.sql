-- The number of messages of a queue, up to the limit.
select count(*) from (select 1 from {schema}.message where queue = :queue limit :limit) found
