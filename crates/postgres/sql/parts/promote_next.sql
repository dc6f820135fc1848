next as materialized (
  select gone.queue, gone.ordering_key, first.id
  from gone cross join lateral (
    select o.id, o.blocked from {schema}.message o
    where o.queue = gone.queue and o.ordering_key = gone.ordering_key and o.id <> gone.id
    order by o.id limit 1) first
  where gone.holds_stripe and first.blocked),
free as materialized (
  select n.id from next join {schema}.message n on n.id = next.id where n.blocked for update of n skip locked),
promoted as (
  update {schema}.message n
  set blocked = false, next_attempt_at = greatest(n.next_attempt_at, {schema}.clock())
  from free where n.id = free.id),
unplaced as (
  insert into {schema}.unplaced (queue, ordering_key)
  select gone.queue, gone.ordering_key from gone
  where gone.ordering_key is not null and gone.queue not like '%\_dlq' and not gone.holds_stripe
  union all
  select next.queue, next.ordering_key from next where next.id not in (select id from free))
