-- What a purge or a deletion goes through, a chunk at a time.
-- Plan: SEARCH message USING INDEX message_claim (queue=?)
select id, message_id, ordering_key from message
where queue = ?1 and id <= ?2 and (?3 is null or lease_token is null or next_attempt_at <= ?3)
limit ?4
