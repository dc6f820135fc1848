-- The row number of the newest message; null if there is none.
-- Plan: SEARCH message
select max(id) as last_id from message
