-- Looks up only the rows that are not due in the table.
-- Plan: SEARCH message USING INDEX message_claim (queue=?)
select count(lease_token) as in_flight, count(*) as not_due from message where queue = ?1 and next_attempt_at > ?2
