-- Sets the ends of leases, and stores the reported progress.
-- Plan: Index Scan using task_identity on task t
update {schema}.task t
set lease_expires_at = {schema}.clock() + $6::bigint * interval '1 microsecond',
    progress = case when s.has_progress then s.progress else t.progress end,
    progress_text = case when s.has_progress then s.progress_text else t.progress_text end
from unnest($1::uuid[], $2::bigint[], $3::boolean[], $4::double precision[], $5::text[])
     as s (task_id, lease_token, has_progress, progress, progress_text)
where t.task_id = s.task_id and t.state::text = 'PROCESSING' and t.lease_token = s.lease_token
returning t.task_id, t.lease_token
