-- By the index on vt, so that what is leased or delayed is never walked. Rows that must die are leased too, but not
-- counted: they are moved in a transaction of their own. A message of a key waits while an older one of the key is in
-- the queue, in whatever state; senders take turns by the key's stripe, so an older one is never committed later. Nothing
-- is locked that is not taken: the limit pulls row by row.
-- Plan: Index Scan using {vt_index} on {table} m
-- Plan: Index Scan using {group_index} on {table} o
with chosen as materialized (
  select m.msg_id, m.vt as due,
         case when not $4::boolean then null
              when {schema}.number({schema}.ours(m.headers)->'expires_at') <= {schema}.micros({schema}.clock())
              then 'expired'
              when m.read_ct - coalesce({schema}.number({schema}.ours(m.headers)->'released'), 0) >= $5
              then 'max_receive_count' end as death
  from {queue} m
  where m.vt <= {schema}.clock() and not exists (select 1 from {schema}.queue_pause where queue = $1)
    and (not $4::boolean or m.headers->>'x-pgmq-group' is null
         or not exists (select 1 from {queue} o
                        where o.headers->>'x-pgmq-group' = m.headers->>'x-pgmq-group' and o.msg_id < m.msg_id))
  order by m.vt limit $2 for update skip locked),
leased as (
  update {queue} m
  set vt = {schema}.clock() + $3::bigint * interval '1 microsecond',
      read_ct = m.read_ct + case when chosen.death is null then 1 else 0 end,
      last_read_at = case when chosen.death is null then {schema}.clock() else m.last_read_at end,
      headers = case when m.read_ct = 0 or chosen.death is not null or {schema}.ours(m.headers) ? 'first_read_at'
                          or m.read_ct <= coalesce({schema}.number({schema}.ours(m.headers)->'released'), 0)
                     then m.headers
                     else {schema}.noted(m.headers, jsonb_build_object('first_read_at',
                                                                       {schema}.micros(m.last_read_at))) end
  from chosen where m.msg_id = chosen.msg_id
  returning m.msg_id, m.read_ct, m.enqueued_at, m.last_read_at, m.vt, m.message, m.headers, chosen.due, chosen.death)
select * from leased
-- One more row when messages that were kept aside are due.
union all
select null, null, null, null, null, null, null, null, null
where exists (select 1 from {schema}.delayed where queue = $1 and due_at <= {schema}.clock())
