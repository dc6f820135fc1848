-- The queues that exist. A queue that a caller's transaction created is listed by the first claim.
select name from {schema}.queue where name = any ($1::text[])
union select queue from {schema}.unplaced where queue = any ($1::text[])
