-- The latest failed attempts, newest first.
select attempt, timestampdiff(microsecond, '1970-01-01', started_at) as started_at,
       timestampdiff(microsecond, '1970-01-01', failed_at) as failed_at, worker, error
from {schema}.failed_attempt where queue = :queue and message_id = :message_id
order by attempt desc limit :limit
