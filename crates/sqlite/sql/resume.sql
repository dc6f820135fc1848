delete from queue_pause where queue = ?1
