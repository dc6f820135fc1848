-- The newest message's row number; null when there is none.
-- Plan: SEARCH message
select max(id) from message
