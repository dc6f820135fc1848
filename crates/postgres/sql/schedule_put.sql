-- The first version is the time, so that a schedule that is deleted and created again has another one.
insert into {schema}.task_schedule as s (name, definition, version, created_at, next_run_at)
values ($1, $2, (extract(epoch from {schema}.clock()) * 1000000)::bigint, {schema}.clock(), $3)
on conflict (name) do update
set definition = excluded.definition, next_run_at = excluded.next_run_at, version = s.version + 1
returning {schedule}
