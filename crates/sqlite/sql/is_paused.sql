select exists (select 1 from queue_pause where queue = ?1) as is_paused
