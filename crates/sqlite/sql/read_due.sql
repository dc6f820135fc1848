-- Reads a message before it is leased, because one that was delivered too often or has expired must not be leased. An
-- update with RETURNING and the same conditions took three times as long.
-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
select message_id, content_type, headers, ordering_key, priority, deliveries_count, attempts_count, created_at,
       first_attempt_at, expires_at, dedup_key, payload
from message where id = ?1
