-- The number of messages in a queue, counted up to the limit.
-- Plan: SEARCH message USING COVERING INDEX message_claim (queue=?)
select count(*) as count from (select 1 from message where queue = ?1 limit ?2)
