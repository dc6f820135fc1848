-- For a short queue: reads all of its messages by the index.
-- Plan: SEARCH message USING INDEX message_claim (queue=?)
select id from message indexed by message_claim where queue = ?1 and message_id = ?2
