-- The last failed attempts of a message, newest first.
-- Plan: SEARCH failed_attempt USING PRIMARY KEY (queue=? AND message_id=?)
select attempt, started_at, failed_at, worker, error from failed_attempt where queue = ?1 and message_id = ?2
order by attempt desc limit ?3
