-- For a long queue: scans the table in the order of its pages.
-- Plan: SCAN message
select id from message not indexed where queue = ?1 and message_id = ?2
