-- The first version is the time: a schedule that is deleted and made again must not be taken for the one before.
insert into {schema}.task_schedule as s (name, definition, version, created_at, next_run_at)
values ($1, $2, (extract(epoch from {schema}.clock()) * 1000000)::bigint, {schema}.clock(), $3)
on conflict (name) do update
set definition = excluded.definition, next_run_at = excluded.next_run_at, version = s.version + 1
returning name, definition, version, created_at, paused_at, next_run_at, last_run_at, last_task_id
