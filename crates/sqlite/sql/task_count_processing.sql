-- Reads the leased tasks of all types, which are always few.
-- Plan: SEARCH task USING INDEX task_lease (lease_expires_at>?)
select count(*) as count
from (select 1 from task where state = 'PROCESSING' and lease_expires_at is not null and task_type = ?1 limit ?2)
