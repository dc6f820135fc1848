-- Inserts one row; prepared once for all messages. A VALUES list of several rows was not faster and has a parameter
-- limit.
insert into message (queue, blocked, priority, next_attempt_at, state, created_at, expires_at, message_id,
                     ordering_key, dedup_key, content_type, headers, payload)
values (?1, ?2, ?3, ?4, 'PENDING', ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
