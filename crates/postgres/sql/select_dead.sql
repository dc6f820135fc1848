-- A chunk of the dead letters to redrive or purge.
-- Plan: Index Scan using dead_letter_queue on dead_letter d
-- Plan: Index Scan using message_pkey on message m
select d.death, d.id, m.message_id, d.dedup_key, m.ordering_key,
       m.lease_token is not null and m.next_attempt_at > {schema}.clock() as is_leased
from {schema}.dead_letter d join {schema}.message m on m.id = d.id
where d.queue = $1 and d.death > $2 and ($3::text is null or d.reason = $3)
order by d.death limit $4
