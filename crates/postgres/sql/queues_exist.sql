-- Those of these queues that exist. A queue that somebody else's transaction made is listed when it is first read.
select name from {schema}.queue where name = any ($1::text[])
union select queue from {schema}.unplaced where queue = any ($1::text[])
