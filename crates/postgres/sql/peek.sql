-- For a queue of few messages: all of them by the index, then sorted. The sum keeps the planner from the other way.
-- Plan: Index Scan using message_claim on message
select message_id, payload, content_type, headers::text, ordering_key, priority, state = 'RETRYABLE',
       lease_token is not null, deliveries_count, attempts_count, created_at, next_attempt_at, last_error,
       next_attempt_at > {schema}.clock(), id
from {schema}.message where queue = $1 and id + 0 > $3 order by id + 0 limit $2
