-- For a short queue: all messages by the index, then sorted. `+ 0` keeps the planner from the other plan.
-- Plan: Index Scan using message_claim on message
select {peeked}
from {schema}.message where queue = $1 and id + 0 > $3 order by id + 0 limit $2
