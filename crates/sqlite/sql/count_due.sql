-- Plan: SEARCH message USING COVERING INDEX message_claim (queue=?)
select count(*), min(id) from message where queue = ?1 and next_attempt_at <= ?2
