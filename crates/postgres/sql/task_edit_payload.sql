-- Changes the payload of a dead task and keeps the old one. The state is compared as text, or the planner would walk
-- all dead tasks.
-- Plan: Index Scan using task_identity on task t_1
-- Plan: Index Scan using task_pkey on task t
with chosen as materialized (
  select t.id, t.revision, t.payload from {schema}.task t where t.task_id = $1 and t.state::text = 'DEAD' for update),
kept as (
  insert into {schema}.task_revision (id, revision, replaced_at, payload)
  select id, revision, {schema}.clock(), payload from chosen)
update {schema}.task t set payload = $2, revision = t.revision + 1
from chosen where t.id = chosen.id
returning t.revision
