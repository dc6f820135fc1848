-- All rows in one statement, as arrays, so that no parameter limit applies. A keyed message is the head of its key if
-- there is no other before it, in the batch or in the table; the caller holds the key's stripe.
-- Plan: Index Only Scan using message_key on message o
with listed as (
insert into {schema}.queue (name) select unnest($13::text[]) on conflict do nothing)
insert into {schema}.message (queue, message_id, priority, next_attempt_at, created_at, expires_at, ordering_key,
                              dedup_key, content_type, headers, payload, blocked)
select s.queue, s.message_id, s.priority, {schema}.clock() + s.delay * interval '1 microsecond', {schema}.clock(),
       coalesce(s.expires_at, {schema}.clock() + s.lifetime * interval '1 microsecond'), s.ordering_key, s.dedup_key,
       s.content_type, s.headers::jsonb, s.payload,
       s.ordering_key is not null
         and (s.is_behind or exists (select 1 from {schema}.message o
                                     where o.queue = s.queue and o.ordering_key = s.ordering_key))
from unnest($1::text[], $2::uuid[], $3::smallint[], $4::bigint[], $5::timestamptz[], $6::bigint[], $7::text[],
            $8::text[], $9::text[], $10::text[], $11::bytea[], $12::boolean[])
     as s (queue, message_id, priority, delay, expires_at, lifetime, ordering_key, dedup_key, content_type, headers,
           payload, is_behind)
on conflict (queue, dedup_key) where dedup_key is not null do nothing
returning id
