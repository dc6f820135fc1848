-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
select exists (select 1 from message
               where id = ?1 and queue = ?2 and message_id = ?3 and blocked = 0 and next_attempt_at <= ?4) as is_due
