-- Plan: Index Scan using task_lease on task t
select t.task_id, t.lease_token, t.task_type, t.worker_id, t.attempt_count, t.max_attempts, t.retry_strategy,
       (extract(epoch from {schema}.clock() - t.first_started_at) * 1000000)::bigint as since_first_attempt
from {schema}.task t
where t.state = 'PROCESSING' and t.lease_expires_at <= {schema}.clock()
order by t.lease_expires_at limit $1
