-- Sets the ends of leases, and keeps what is told of progress.
-- Plan: Index Scan using task_identity on task t
update {schema}.task t
set lease_expires_at = {schema}.clock() + $6::bigint * interval '1 microsecond',
    progress = case when s.is_told then s.progress else t.progress end,
    progress_text = case when s.is_told then s.progress_text else t.progress_text end
from unnest($1::uuid[], $2::bigint[], $3::boolean[], $4::double precision[], $5::text[])
     as s (task_id, lease_token, is_told, progress, progress_text)
where t.task_id = s.task_id and t.state::text = 'PROCESSING' and t.lease_token = s.lease_token
returning t.task_id, t.lease_token
