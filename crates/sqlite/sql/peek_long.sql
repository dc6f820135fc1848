-- For a queue of many messages: by row number until there are enough, since sorting them all would take longer.
-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid>?)
select message_id, payload, content_type, headers, ordering_key, priority, state, lease_token is not null,
       deliveries_count, attempts_count, created_at, next_attempt_at, last_error, id
from message not indexed where queue = ?1 and id > ?3 order by id limit ?2
