-- A chunk of the dead letters to redrive or purge.
select d.death, d.id, m.message_id, d.dedup_key, m.ordering_key,
       m.lease_token is not null and m.next_attempt_at > utc_timestamp(6) as is_leased
from {schema}.dead_letter d force index (dead_letter_queue) join {schema}.message m on m.id = d.id
where d.queue = :queue and d.death > :after and (:reason is null or d.reason = :reason)
order by d.death limit :limit
