-- Plan: SEARCH message USING COVERING INDEX message_key (queue=? AND ordering_key=?)
select exists (select 1 from message where queue = ?1 and ordering_key = ?2) as key_is_taken
