-- Unblocks the first message of every key of a queue. Needed only after another program has damaged a key.
-- Plan: SEARCH message USING INTEGER PRIMARY KEY (rowid=?)
-- Plan: SEARCH message USING COVERING INDEX message_key (queue=? AND ordering_key>?)
update message set blocked = 0
where blocked = 1
  and id in (select min(id) from message where queue = ?1 and ordering_key is not null group by ordering_key)
