-- The latest failed attempts, newest first.
-- Plan: Index Scan Backward using failed_attempt_pkey on failed_attempt
select attempt, started_at, failed_at, worker, error from {schema}.failed_attempt where queue = $1 and message_id = $2
order by attempt desc limit $3
