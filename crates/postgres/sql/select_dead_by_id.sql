-- `+ 0` and `|| ''` keep the planner from walking all dead letters of the queue.
-- Plan: Index Scan using dead_letter_message on dead_letter d
-- Plan: Index Scan using message_pkey on message m
select d.death, d.id, m.message_id, d.dedup_key, m.ordering_key,
       m.lease_token is not null and m.next_attempt_at > {schema}.clock() as is_leased
from {schema}.dead_letter d join {schema}.message m on m.id = d.id
where d.message_id = any ($2::uuid[]) and d.queue || '' = $1
order by d.death + 0
