insert into outbox (queue, message_id, priority, due_at, content_type, created_at, payload)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
