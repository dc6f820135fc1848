-- Where tasks are in their lives, the token of whoever works on them, and for one that only has to wait for its time, how
-- many microseconds.
-- Plan: Index Scan using task_identity on task t
select t.task_id, t.state::text, t.lease_token,
       case when t.state in ('PENDING', 'ENQUEUED') and not t.blocked
                 and (t.deadline is null or t.deadline > {schema}.clock())
            then ceil(extract(epoch from t.scheduled_for - {schema}.clock()) * 1000000)::bigint end
from unnest($1::uuid[]) as s (task_id) join {schema}.task t on t.task_id = s.task_id
