-- The last ones, newest first.
-- Plan: SEARCH message_attempt USING PRIMARY KEY (message_id=?)
select attempt, started_at, failed_at, worker, error from message_attempt where message_id = ?1
order by attempt desc limit ?2
