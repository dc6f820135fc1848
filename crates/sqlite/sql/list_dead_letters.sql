-- Plan: SEARCH d USING INDEX dead_letter_queue (queue=? AND death>?)
-- Plan: SEARCH m USING INTEGER PRIMARY KEY (rowid=?)
-- With ?5 = 0 it reads no bodies and headers.
select d.death, d.id, d.reason, d.error, d.deliveries_count, d.attempts_count, d.created_at, d.first_attempt_at,
       d.last_attempt_at, d.dead_at, d.dedup_key, d.revision, m.message_id, m.priority, m.ordering_key,
       m.content_type, iif(?5, m.headers, '{}') as headers, iif(?5, m.payload, null) as payload, m.expires_at
from dead_letter d join message m on m.id = d.id
where d.queue = ?1 and d.death > ?2 and (?3 is null or d.reason = ?3)
order by d.death limit ?4
