select exists (select 1 from queue where name = ?1) as queue_exists
