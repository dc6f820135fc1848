-- A chunk of the dead letters that a redrive or a purge selects.
-- Plan: SEARCH d USING INDEX dead_letter_queue (queue=? AND death>?)
-- Plan: SEARCH m USING INTEGER PRIMARY KEY (rowid=?)
select d.death, d.id, m.message_id, d.dedup_key, m.lease_token is not null and m.next_attempt_at > ?4 as is_leased
from dead_letter d join message m on m.id = d.id
where d.queue = ?1 and d.death > ?2 and (?3 is null or d.reason = ?3)
order by d.death limit ?5
