insert or replace into task_attempt (id, replay, attempt, worker_id, started_at, ended_at, outcome, error)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
