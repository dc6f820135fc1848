-- The messages that a purge or a deletion removes.
-- Plan: SEARCH message USING INDEX message_claim (queue=?)
select id, cast(message_id as blob) as message_id from message where queue = ?1
