-- Walks a chunk of the oldest tasks and removes those that ended long ago, with their history. Returns the last id of
-- the chunk, or null if there are no more, or only younger ones.
-- Plan: Index Scan using task_pkey on task
-- Plan: Index Scan using task_pkey on task t
-- Plan: Index Scan using task_attempt_pkey on task_attempt a
-- Plan: Index Scan using task_revision_pkey on task_revision r
with seen as materialized (
  select id, created_at, state, finished_at from {schema}.task where id > $1 order by id limit $3),
gone as (
  delete from {schema}.task t using seen
  where t.id = seen.id and seen.state in ('SUCCEEDED', 'CANCELED')
    and seen.finished_at <= {schema}.clock() - $2::bigint * interval '1 microsecond'
  returning t.id),
attempts as (delete from {schema}.task_attempt a using gone where a.id = gone.id),
revisions as (delete from {schema}.task_revision r using gone where r.id = gone.id)
select (select count(*) from gone) as forgotten,
       case when count(*) = $3 and max(created_at) <= {schema}.clock() - $2::bigint * interval '1 microsecond'
            then max(id) end as last
from seen
