-- Plan: SEARCH task USING INDEX task_lease (lease_expires_at<?)
select task_id, lease_token, task_type, worker_id, attempt_count, max_attempts, retry_strategy, first_started_at
from task where state = 'PROCESSING' and lease_expires_at <= ?1
order by lease_expires_at limit ?2
