-- For tasks without keys that differ in nothing but their ids and payloads, which is most batches: two arrays instead of
-- fourteen, what they have in common is worked out once, and nothing to conflict with but an id.
insert into {schema}.task (task_type, priority, scheduled_for, created_at, max_attempts, deadline, retry_strategy, tags,
                           schedule, task_id, payload)
select $1::text, $2::smallint,
       (select coalesce($3::timestamptz, {schema}.clock() + $4::bigint * interval '1 microsecond')), {schema}.clock(),
       $5::bigint, (select coalesce($6::timestamptz, {schema}.clock() + $7::bigint * interval '1 microsecond')), $8::text,
       $9::text[], $10::text, s.task_id, s.payload
from unnest($11::uuid[], $12::bytea[]) as s (task_id, payload)
