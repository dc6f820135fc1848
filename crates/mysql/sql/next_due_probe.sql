(select next_attempt_at from {schema}.message force index (message_claim)
 where queue = :queue and blocked = 0 and priority = :priority order by next_attempt_at limit 1)
