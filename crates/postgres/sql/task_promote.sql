-- Promotes the first task of each key that has no head. The caller took the keys' locks in an earlier statement. A task
-- that another transaction has locked is not waited for: its key stays noted. A plain NOT EXISTS would read the heads
-- of all keys.
-- Plan: Index Scan using task_key on task n
-- Plan: Index Only Scan using task_head on task h
-- Plan: Index Scan using task_unplaced_key on task_unplaced u
with first as materialized (
  select k.task_type, k.ordering_key, next.id
  from unnest($1::text[], $2::text[]) as k (task_type, ordering_key)
  cross join lateral (select n.id from {schema}.task n
                      where n.task_type = k.task_type and n.ordering_key = k.ordering_key and n.ordering_key is not null
                        and n.state in ('PENDING', 'ENQUEUED', 'PROCESSING')
                      order by n.position limit 1) next
  where (select true from {schema}.task h
         where h.task_type = k.task_type and h.ordering_key = k.ordering_key and h.ordering_key is not null
           and not h.blocked and h.state in ('PENDING', 'ENQUEUED', 'PROCESSING')) is null),
free as materialized (
  select t.id from first join {schema}.task t on t.id = first.id
  where t.blocked and t.state = 'PENDING' for update of t skip locked),
left_over as materialized (select task_type, ordering_key from first where id not in (select id from free)),
promoted as (
  update {schema}.task t set blocked = false from free where t.id = free.id returning t.task_type),
forgotten as (
  delete from {schema}.task_unplaced u
  using unnest($1::text[], $2::text[]) as k (task_type, ordering_key)
  where u.task_type = k.task_type and u.ordering_key = k.ordering_key
    and not exists (select 1 from left_over l where l.task_type = k.task_type and l.ordering_key = k.ordering_key))
select distinct task_type from promoted
