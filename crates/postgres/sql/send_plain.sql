-- For messages without keys, the common case: no lookups and no conflicts.
with listed as (
  insert into {schema}.queue (name) select unnest($10::text[]) on conflict do nothing)
insert into {schema}.message (queue, message_id, priority, next_attempt_at, created_at, expires_at, content_type,
                              headers, payload)
select s.queue, s.message_id, s.priority, {schema}.clock() + s.delay * interval '1 microsecond', {schema}.clock(),
       coalesce(s.expires_at, {schema}.clock() + s.lifetime * interval '1 microsecond'), s.content_type,
       s.headers::jsonb, s.payload
from unnest($1::text[], $2::uuid[], $3::smallint[], $4::bigint[], $5::timestamptz[], $6::bigint[], $7::text[],
            $8::text[], $9::bytea[])
     as s (queue, message_id, priority, delay, expires_at, lifetime, content_type, headers, payload)
