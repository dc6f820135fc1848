-- A queue that somebody else's transaction made is listed when it is first read.
select name from {schema}.queue where name in (:names)
union select queue from {schema}.unplaced where queue in (:names)
