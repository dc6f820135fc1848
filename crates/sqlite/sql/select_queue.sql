-- What a purge or a deletion goes through.
-- Plan: SEARCH message USING INDEX message_claim (queue=?)
select id, cast(message_id as blob) from message where queue = ?1
