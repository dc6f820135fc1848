insert into queue_pause (queue, paused_at) values (?1, ?2) on conflict do nothing
