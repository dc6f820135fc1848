update dead_letter set revision = revision + 1 where id = ?1
