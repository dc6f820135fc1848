-- All rows in one statement, as arrays, so that no parameter limit applies.
insert into {queue} (enqueued_at, vt, message, headers)
select {schema}.clock(), {schema}.clock() + s.delay * interval '1 microsecond', s.message, s.headers
from unnest($1::bigint[], $2::jsonb[], $3::jsonb[]) as s (delay, message, headers)
