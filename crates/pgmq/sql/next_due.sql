-- In how many microseconds the next message is due, found in the way of the claim.
-- Plan: Index Scan using {vt_index} on {table} m
-- Plan: Index Scan using {group_index} on {table} o
-- Plan: Index Only Scan using {free_index} on {table} f
-- Plan: Index Only Scan using delayed_queue on delayed
with recursive walked as (
  select m.msg_id, m.vt, m.headers->>'x-pgmq-group' as key from {queue} m order by m.vt limit $3),
near as (
  select w.vt from walked w
  where not $2::boolean or w.key is null
     or not exists (select 1 from {queue} o where o.headers->>'x-pgmq-group' = w.key and o.msg_id < w.msg_id)
  limit 1),
heads as (
  (select o.vt, o.headers->>'x-pgmq-group' as key from {queue} o
   where o.headers->>'x-pgmq-group' is not null
   order by o.headers->>'x-pgmq-group', o.msg_id limit 1)
  union all
  select next.vt, next.key
  from heads, lateral (select o.vt, o.headers->>'x-pgmq-group' as key from {queue} o
                       where o.headers->>'x-pgmq-group' > heads.key
                       order by o.headers->>'x-pgmq-group', o.msg_id limit 1) next)
select case when not exists (select 1 from {schema}.queue_pause where queue = $1) then
         ceil(extract(epoch from
           least(coalesce((select vt from near),
                          case when (select count(*) from walked) >= $3 then
                            least((select min(vt) from heads),
                                  (select f.vt from {queue} f where f.headers->>'x-pgmq-group' is null
                                   order by f.vt limit 1)) end),
                 (select due_at from {schema}.delayed where queue = $1 order by due_at limit 1)) - {schema}.clock())
              * 1000000)::bigint
       end as due_in
