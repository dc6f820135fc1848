select dedup_key from dead_letter where id = ?1
