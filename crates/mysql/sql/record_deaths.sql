-- Adds the records of dead letters, in the order of deaths.
insert into {schema}.dead_letter (id, message_id, queue, reason, error, deliveries_count, attempts_count, created_at,
                                  first_attempt_at, last_attempt_at, dead_at, dedup_key)
select id, message_id, queue, :reasons, coalesce(:errors, last_error), deliveries_count,
       attempts_count, created_at, first_attempt_at, last_attempt_at, utc_timestamp(6), dedup_key
from {schema}.message force index (primary) where id in (:ids) order by id
