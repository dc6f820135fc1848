delete from message_attempt where message_id = ?1
