select attempt from {schema}.failed_attempt where queue = :queue and message_id = :message_id
