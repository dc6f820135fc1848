-- For messages that differ only in ids and bodies, the common case: two arrays instead of nine, and shared values are
-- computed once. The queue is listed if it is new.
with listed as (
  insert into {schema}.queue (name) select unnest($9::text[]) on conflict do nothing)
insert into {schema}.message (queue, priority, next_attempt_at, created_at, expires_at, content_type, headers, message_id,
                              payload)
select $1::text, $2::smallint, (select {schema}.clock() + $3::bigint * interval '1 microsecond'), {schema}.clock(),
       (select coalesce($4::timestamptz, {schema}.clock() + $5::bigint * interval '1 microsecond')), $6::text,
       (select $7::text::jsonb), s.message_id, s.payload
from unnest($8::uuid[], $10::bytea[]) as s (message_id, payload)
