-- Only rows that are not due are looked up in the table.
-- Plan: SEARCH message USING INDEX message_claim (queue=?)
select count(lease_token), count(*) from message where queue = ?1 and next_attempt_at > ?2
