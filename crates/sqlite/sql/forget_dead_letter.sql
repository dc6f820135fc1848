delete from dead_letter where id = ?1
