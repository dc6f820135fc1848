-- Moves dead letters back: new rows at the tails of their keys, in the order of deaths. An expiry that has passed is
-- dropped, or the message would die again unread. The caller holds the keys' stripes and promotes afterwards.
insert into {schema}.message (queue, blocked, priority, next_attempt_at, created_at, expires_at, message_id,
                              ordering_key, dedup_key, content_type, headers, payload)
select :queue, m.ordering_key is not null, m.priority, utc_timestamp(6), utc_timestamp(6),
       case when m.expires_at > utc_timestamp(6) then m.expires_at end, m.message_id, m.ordering_key, d.dedup_key,
       m.content_type, m.headers, m.payload
from {schema}.dead_letter d join {schema}.message m on m.id = d.id
where d.id in (:ids) order by d.death
