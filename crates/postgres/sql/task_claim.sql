-- Leases due tasks. One probe a priority, type and state: tasks of other types and tasks that are not due or have ended
-- are not walked. By ctid, which saves a second search. The limits pull row by row, so only rows that are taken are
-- locked.
-- Plan: Index Scan using task_claim on task t_1
-- Plan: Index Scan using task_claim on task t_2
-- Plan: Tid Scan on task t
-- Plan: Index Only Scan using task_unplaced_key on task_unplaced
with chosen as materialized (
  select found.row_ctid
  from unnest($1::smallint[], $2::text[]) as probe (priority, task_type)
  cross join lateral (
    select row_ctid from (
      select t.ctid as row_ctid from {schema}.task t
      where t.state = 'ENQUEUED' and not t.blocked and t.task_type = probe.task_type and t.priority = probe.priority
        and t.scheduled_for <= {schema}.clock() and (t.deadline is null or t.deadline > {schema}.clock())
      order by t.scheduled_for limit $3 for update skip locked) enqueued
    union all
    select row_ctid from (
      select t.ctid as row_ctid from {schema}.task t
      where t.state = 'PENDING' and not t.blocked and t.task_type = probe.task_type and t.priority = probe.priority
        and t.scheduled_for <= {schema}.clock() and (t.deadline is null or t.deadline > {schema}.clock())
      order by t.scheduled_for limit $3 for update skip locked) pending) found
  limit $3)
update {schema}.task t
set state = 'PROCESSING', attempt_count = t.attempt_count + 1, lease_token = $5,
    lease_expires_at = (select {schema}.clock() + $4::bigint * interval '1 microsecond'), worker_id = $6,
    started_at = {schema}.clock(), first_started_at = coalesce(t.first_started_at, {schema}.clock()), progress = null,
    progress_text = null
from chosen
where t.ctid = chosen.row_ctid
returning t.id, t.task_id, t.task_type, t.payload, t.attempt_count, t.max_attempts, t.retry_strategy, t.priority,
          t.ordering_key, t.tags, t.created_at, t.scheduled_for, t.first_started_at, t.started_at, t.deadline,
          exists (select 1 from {schema}.task_unplaced) as has_unplaced
