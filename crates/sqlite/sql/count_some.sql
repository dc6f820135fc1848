-- How many messages a queue has, counted no further than the limit.
-- Plan: SEARCH message USING COVERING INDEX message_claim (queue=?)
select count(*) from (select 1 from message where queue = ?1 limit ?2)
