-- The first version is the time, so that a schedule that is deleted and created again has another version.
insert into task_schedule (name, definition, version, created_at, next_run_at) values (?1, ?2, ?3, ?3, ?4)
on conflict (name) do update
set definition = excluded.definition, version = version + 1, next_run_at = excluded.next_run_at
