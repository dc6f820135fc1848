-- Makes the first message of a key its head.
-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
-- Plan: SEARCH message USING COVERING INDEX message_key (queue=? AND ordering_key=?)
update message set blocked = 0
where id = (select id from message where queue = ?1 and ordering_key = ?2 order by id limit 1) and blocked = 1
returning next_attempt_at
