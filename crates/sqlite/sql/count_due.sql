-- Plan: SEARCH message USING COVERING INDEX message_claim (queue=?)
select count(*) as ready, min(id) as oldest from message where queue = ?1 and next_attempt_at <= ?2
