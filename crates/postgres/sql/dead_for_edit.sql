-- Locks the oldest dead letter with an id, so that no claim leases it meanwhile.
-- `+ 0` keeps the planner from walking all dead letters in order.
-- Plan: Index Scan using dead_letter_message on dead_letter d
-- Plan: Index Scan using message_pkey on message m
select m.id, m.lease_token is not null and m.next_attempt_at > {schema}.clock() as is_leased, m.payload,
       m.headers::text as headers, m.content_type
from {schema}.dead_letter d join {schema}.message m on m.id = d.id
where d.message_id = $2 and d.queue = $1
order by d.death + 0 limit 1 for update of m
