-- Notes failed attempts, after they were counted.
insert into {schema}.failed_attempt (queue, message_id, attempt, started_at, failed_at, worker, error)
select queue, message_id, attempts_count, last_attempt_at, utc_timestamp(6), :worker, :errors
from {schema}.message force index (primary) where id in (:ids)
on duplicate key update started_at = values(started_at), failed_at = values(failed_at), worker = values(worker),
                        error = values(error)
