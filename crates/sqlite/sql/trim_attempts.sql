delete from message_attempt where message_id = ?1 and attempt <= ?2
