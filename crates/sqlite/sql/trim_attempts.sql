delete from failed_attempt where queue = ?1 and message_id = ?2 and attempt <= ?3
