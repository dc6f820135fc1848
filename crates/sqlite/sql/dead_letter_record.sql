-- Runs before the move, while the row still has the counts and times of its death.
-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
insert into dead_letter (id, message_id, queue, reason, error, deliveries_count, attempts_count, created_at,
                         first_attempt_at, last_attempt_at, dead_at, dedup_key)
select id, message_id, ?2, ?3, coalesce(?4, last_error), deliveries_count, attempts_count, created_at,
       first_attempt_at, last_attempt_at, ?5, dedup_key
from message where id = ?1
