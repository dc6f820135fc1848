-- Archives acked messages on the server, so that payloads do not travel. Rows are locked as they are read, so that they
-- can be removed unchanged afterwards.
insert into {schema}.message_archive (archived_at, id, created_at, first_attempt_at, last_attempt_at, deliveries_count,
                                      attempts_count, message_id, state, priority, queue, ordering_key, content_type,
                                      headers, payload, last_error)
select utc_timestamp(6), id, created_at, first_attempt_at, last_attempt_at, deliveries_count, attempts_count,
       message_id, 'COMPLETED', priority, queue, ordering_key, content_type, headers, payload, last_error
from {schema}.message force index (primary) where :these for update
