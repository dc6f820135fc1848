-- Plan: SEARCH d USING INDEX dead_letter_message (message_id=?)
-- Plan: SEARCH m USING INTEGER PRIMARY KEY (rowid=?)
select d.death, d.id, d.reason, d.error, d.deliveries_count, d.attempts_count, d.created_at, d.first_attempt_at,
       d.last_attempt_at, d.dead_at, d.dedup_key, d.revision, m.message_id, m.priority, m.ordering_key,
       m.content_type, m.headers, m.payload, m.expires_at
from dead_letter d indexed by dead_letter_message cross join message m on m.id = d.id
where d.message_id = ?1 and d.queue = ?2
order by d.death
