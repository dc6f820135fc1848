-- Plan: SEARCH message_archive USING INTEGER PRIMARY KEY (rowid=?)
select message_id, content_type, headers, ordering_key, priority, state, payload, deliveries_count, attempts_count,
       created_at, first_attempt_at, last_attempt_at, archived_at, last_error
from message_archive where archive_id = ?1
