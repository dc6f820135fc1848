(select priority, next_attempt_at from {schema}.message force index (message_claim)
 where queue = :queue and blocked = 0 and priority = :priority and next_attempt_at <= utc_timestamp(6)
 order by next_attempt_at limit :limit)
