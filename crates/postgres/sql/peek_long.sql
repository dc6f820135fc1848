-- For a long queue: by row number until the page is full, because sorting them all would take longer.
-- Plan: Index Scan using message_pkey on message
select {peeked}
from {schema}.message where queue = $1 and id > $3 order by id limit $2
