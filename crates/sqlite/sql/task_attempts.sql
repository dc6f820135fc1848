-- Plan: SEARCH task_attempt USING PRIMARY KEY (id=?)
select attempt, replay, worker_id, started_at, ended_at, outcome, error
from task_attempt where id = ?1 order by replay, attempt
