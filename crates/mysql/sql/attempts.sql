select attempt from {schema}.message_attempt where message_id = :message_id
