-- For a queue of many messages: by row number until there are enough, since sorting them all would take longer.
-- Plan: Index Scan using message_pkey on message
select message_id, payload, content_type, headers::text, ordering_key, priority, state = 'RETRYABLE',
       lease_token is not null, deliveries_count, attempts_count, created_at, next_attempt_at, last_error,
       next_attempt_at > {schema}.clock(), id
from {schema}.message where queue = $1 and id > $3 order by id limit $2
