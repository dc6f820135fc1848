-- Failed attempts, and the running or successful one, which is kept in the task's row.
-- Plan: Index Scan using task_identity on task t
-- Plan: Index Scan using task_attempt_pkey on task_attempt a
select a.attempt, a.replay, a.worker_id, a.started_at, a.ended_at, a.outcome, a.error
from {schema}.task t join {schema}.task_attempt a on a.id = t.id
where t.task_id = $1
union all
select t.attempt_count, t.replay_count, t.worker_id, t.started_at, t.finished_at,
       case when t.state = 'PROCESSING' then 'running' else 'succeeded' end, null
from {schema}.task t
where t.task_id = $1 and t.state in ('PROCESSING', 'SUCCEEDED') and t.started_at is not null
