-- For a short queue: reads all of its messages by the index and sorts them.
-- Plan: SEARCH message USING INDEX message_claim (queue=?)
-- Plan: USE TEMP B-TREE FOR ORDER BY
select message_id, payload, content_type, headers, ordering_key, priority, state, lease_token is not null as is_leased,
       deliveries_count, attempts_count, created_at, next_attempt_at, last_error, id
from message indexed by message_claim where queue = ?1 and id > ?3 order by id limit ?2
