-- The last ones, newest first.
-- Plan: Index Scan Backward using message_attempt_pkey on message_attempt
select attempt, started_at, failed_at, worker, error from {schema}.message_attempt where message_id = $1
order by attempt desc limit $2
