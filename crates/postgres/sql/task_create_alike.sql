-- For tasks without keys that differ only in ids and payloads, the common case: two arrays instead of fourteen, shared
-- values are computed once, and only an id can conflict.
insert into {schema}.task (task_type, priority, scheduled_for, created_at, max_attempts, deadline, retry_strategy, tags,
                           schedule, task_id, payload)
select $1::text, $2::smallint,
       (select coalesce($3::timestamptz, {schema}.clock() + $4::bigint * interval '1 microsecond')), {schema}.clock(),
       $5::bigint, (select coalesce($6::timestamptz, {schema}.clock() + $7::bigint * interval '1 microsecond')), $8::text,
       $9::text[], $10::text, s.task_id, s.payload
from unnest($11::uuid[], $12::bytea[]) as s (task_id, payload)
