-- For a queue of many messages: the table from its beginning, in the order that its pages have.
-- Plan: SCAN message
select id from message not indexed where queue = ?1 and message_id = ?2
