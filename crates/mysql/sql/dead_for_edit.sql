-- Locks the oldest dead letter with an id, so that no claim leases it meanwhile.
select m.id, m.lease_token is not null and m.next_attempt_at > utc_timestamp(6) as is_leased, m.payload, m.headers,
       m.content_type
from {schema}.dead_letter d force index (dead_letter_message) join {schema}.message m on m.id = d.id
where d.message_id = :message_id and d.queue = :queue
order by d.death limit 1 for update
