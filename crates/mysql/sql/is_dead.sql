select exists (select 1 from {schema}.dead_letter force index (dead_letter_message)
               where message_id = :message_id and queue = :queue) as is_dead
