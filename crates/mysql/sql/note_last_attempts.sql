-- Notes the failed attempts that dead-letter messages, before the counts are reset: these attempts were not counted.
insert into {schema}.failed_attempt (queue, message_id, attempt, started_at, failed_at, worker, error)
select queue, message_id, attempts_count + 1, last_attempt_at, utc_timestamp(6), :worker, :errors
from {schema}.message force index (primary) where id in (:ids)
on duplicate key update started_at = values(started_at), failed_at = values(failed_at), worker = values(worker),
                        error = values(error)
