-- Inserts a new row at the tail of the key. An expiry that has passed is dropped, or the message would die again
-- unread.
insert into message (queue, blocked, priority, next_attempt_at, state, created_at, expires_at, message_id,
                     ordering_key, dedup_key, content_type, headers, payload)
select ?2,
       m.ordering_key is not null
         and exists (select 1 from message o where o.queue = ?2 and o.ordering_key = m.ordering_key),
       m.priority, ?3, 'PENDING', ?3, case when m.expires_at > ?3 then m.expires_at end, m.message_id,
       m.ordering_key, d.dedup_key, m.content_type, m.headers, m.payload
from message m join dead_letter d on d.id = m.id where m.id = ?1
