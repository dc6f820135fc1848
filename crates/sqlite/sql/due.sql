-- Plan: SEARCH message USING COVERING INDEX message_claim (queue=? AND blocked=? AND priority=? AND next_attempt_at<?)
select id, next_attempt_at from message
where queue = ?1 and blocked = 0 and priority = ?2 and next_attempt_at <= ?3
order by next_attempt_at limit ?4
