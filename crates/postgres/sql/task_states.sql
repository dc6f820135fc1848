-- States of tasks, the tokens of their leases and, for a task that only waits for its time, in how many microseconds it
-- is due.
-- Plan: Index Scan using task_identity on task t
select t.task_id, t.state::text as state, t.lease_token,
       case when t.state in ('PENDING', 'ENQUEUED') and not t.blocked
                 and (t.deadline is null or t.deadline > {schema}.clock())
            then ceil(extract(epoch from t.scheduled_for - {schema}.clock()) * 1000000)::bigint end as wait
from unnest($1::uuid[]) as s (task_id) join {schema}.task t on t.task_id = s.task_id
