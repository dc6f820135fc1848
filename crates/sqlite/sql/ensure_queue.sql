insert into queue (name, created_at) values (?1, ?2) on conflict do nothing
