-- For a queue of few messages: all of them by the index, then sorted.
select message_id, payload, content_type, headers, ordering_key, priority, state = 'RETRYABLE',
       lease_token is not null, deliveries_count, attempts_count, timestampdiff(microsecond, '1970-01-01', created_at),
       timestampdiff(microsecond, '1970-01-01', next_attempt_at), last_error, next_attempt_at > utc_timestamp(6), id
from {schema}.message force index (message_claim) where queue = :queue and id > :after order by id limit :limit
