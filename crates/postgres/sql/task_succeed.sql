-- Ends successful attempts. The state is compared as text, here and in the other ends, or the planner would walk the
-- index of leases instead of searching the ids.
-- Plan: Index Scan using task_identity on task t
with done as (
  update {schema}.task t
  set state = 'SUCCEEDED', finished_at = {schema}.clock(), result = s.result, lease_token = null, lease_expires_at = null
  from unnest($1::uuid[], $2::bigint[], $3::bytea[]) as s (task_id, lease_token, result)
  where t.task_id = s.task_id and t.state::text = 'PROCESSING' and t.lease_token = s.lease_token
  returning t.task_id, s.lease_token, t.task_type, t.ordering_key),
unplaced as (
  insert into {schema}.task_unplaced (task_type, ordering_key)
  select distinct task_type, ordering_key from done where ordering_key is not null)
select task_id, lease_token, task_type, ordering_key from done
