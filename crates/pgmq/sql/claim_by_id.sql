-- Leases the first of these rows that can be claimed now.
-- Plan: Index Scan using {primary_key} on {table} m
-- Plan: Index Scan using {group_index} on {table} o
with chosen as materialized (
  select m.msg_id, m.vt as due,
         case when not $4::boolean then null
              when {schema}.number({schema}.ours(m.headers)->'expires_at') <= {schema}.micros({schema}.clock())
              then 'expired'
              when m.read_ct - coalesce({schema}.number({schema}.ours(m.headers)->'released'), 0) >= $5
              then 'max_receive_count' end as death
  from {queue} m
  where m.msg_id = any ($2::bigint[]) and m.vt <= {schema}.clock()
    and not exists (select 1 from {schema}.queue_pause where queue = $1)
    and (not $4::boolean or m.headers->>'x-pgmq-group' is null
         or not exists (select 1 from {queue} o
                        where o.headers->>'x-pgmq-group' = m.headers->>'x-pgmq-group' and o.msg_id < m.msg_id))
  order by m.msg_id limit 1 for update skip locked),
{lease_chosen}
select * from leased
