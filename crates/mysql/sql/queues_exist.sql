-- A queue that a caller's transaction created is listed by the first claim.
select name from {schema}.queue where name in (:names)
union select queue from {schema}.unplaced where queue in (:names)
