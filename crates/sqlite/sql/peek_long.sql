-- For a long queue: scans by row number up to the limit, because a sort of all messages takes longer.
-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid>?)
select message_id, payload, content_type, headers, ordering_key, priority, state, lease_token is not null as is_leased,
       deliveries_count, attempts_count, created_at, next_attempt_at, last_error, id
from message not indexed where queue = ?1 and id > ?3 order by id limit ?2
