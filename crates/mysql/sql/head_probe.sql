(select timestampdiff(microsecond, '1970-01-01', next_attempt_at) from {schema}.message force index (message_claim)
 where queue = :queue and blocked = 0 and priority = :priority and next_attempt_at between :floor and utc_timestamp(6)
 order by next_attempt_at limit 1) as due_:priority
