-- How many messages a queue has, counted no further than the limit.
select count(*) from (select 1 from {schema}.message where queue = :queue limit :limit) found
