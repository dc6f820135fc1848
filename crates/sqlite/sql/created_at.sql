select created_at from message where id = ?1
