-- Leases due messages: first those near the start of the vt index, so that leased and delayed messages are not walked.
-- If they are not enough, because due messages wait behind the heads of deep keys: the heads of all keys, walked from
-- key to key, and the messages without a key. So the cost is bounded by the number of keys, whatever their depth;
-- behind 100 000 messages of ten leased keys it took 1.2 ms, and 2.9 s when all waiting messages were walked. A message
-- of a key waits while an older one of the key is in the queue, in any state; senders take turns by the key's stripe,
-- so an older one is never committed later. The limit pulls row by row, so only rows that are taken are locked.
-- Messages to be dead-lettered are leased but not counted; they are moved in another transaction.
-- Plan: Index Scan using {vt_index} on {table} m
-- Plan: Index Scan using {group_index} on {table} o
-- Plan: Merge Append
-- Plan: Index Scan using {free_index} on {table} f
with recursive walked as (
  select m.msg_id, m.headers->>'x-pgmq-group' as key from {queue} m
  where m.vt <= {schema}.clock() order by m.vt limit $6),
near as (
  select w.msg_id from walked w
  where not $4::boolean or w.key is null
     or not exists (select 1 from {queue} o where o.headers->>'x-pgmq-group' = w.key and o.msg_id < w.msg_id)),
heads as (
  (select o.msg_id, o.vt, o.headers->>'x-pgmq-group' as key from {queue} o
   where $4::boolean and o.headers->>'x-pgmq-group' is not null
   order by o.headers->>'x-pgmq-group', o.msg_id limit 1)
  union all
  select next.msg_id, next.vt, next.key
  from heads, lateral (select o.msg_id, o.vt, o.headers->>'x-pgmq-group' as key from {queue} o
                       where o.headers->>'x-pgmq-group' > heads.key
                       order by o.headers->>'x-pgmq-group', o.msg_id limit 1) next),
beyond as (
  (select h.msg_id, h.vt from heads h
   where h.vt <= {schema}.clock() and (select count(*) from walked) >= $6
     and h.msg_id not in (select msg_id from near)
   order by h.vt)
  union all
  (select f.msg_id, f.vt from {queue} f
   where f.vt <= {schema}.clock() and f.headers->>'x-pgmq-group' is null
     and $4::boolean and (select count(*) from walked) >= $6
     and f.msg_id not in (select msg_id from near)
   order by f.vt)
  order by vt),
candidates as (select msg_id from near union all select msg_id from beyond),
chosen as materialized (
  select m.msg_id, m.vt as due,
         case when not $4::boolean then null
              when {schema}.number({schema}.ours(m.headers)->'expires_at') <= {schema}.micros({schema}.clock())
              then 'expired'
              when m.read_ct - coalesce({schema}.number({schema}.ours(m.headers)->'released'), 0) >= $5
              then 'max_receive_count' end as death
  from candidates c join {queue} m on m.msg_id = c.msg_id
  where m.vt <= {schema}.clock() and not exists (select 1 from {schema}.queue_pause where queue = $1)
  limit $2 for update of m skip locked),
{lease_chosen}
select * from leased
-- One more row if delayed messages are due.
union all
select null, null, null, null, null, null, null, null, null
where exists (select 1 from {schema}.delayed where queue = $1 and due_at <= {schema}.clock())
