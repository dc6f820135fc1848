-- Copies the row inside the database, so that the payload does not pass through the program. Runs before the row is
-- removed, in the same transaction.
-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
insert into message_archive (id, queue, state, priority, deliveries_count, attempts_count, created_at,
                             first_attempt_at, last_attempt_at, archived_at, message_id, ordering_key, content_type,
                             headers, last_error, payload)
select id, queue, 'COMPLETED', priority, deliveries_count, attempts_count, created_at, first_attempt_at,
       last_attempt_at, ?2, message_id, ordering_key, content_type, headers, last_error, payload
from message where id = ?1
