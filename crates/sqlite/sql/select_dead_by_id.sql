-- Plan: SEARCH d USING INDEX dead_letter_message (message_id=?)
-- Plan: SEARCH m USING INTEGER PRIMARY KEY (rowid=?)
select d.death, d.id, m.message_id, d.dedup_key, m.lease_token is not null and m.next_attempt_at > ?3 as is_leased
from dead_letter d indexed by dead_letter_message cross join message m on m.id = d.id
where d.message_id = ?1 and d.queue = ?2
order by d.death
