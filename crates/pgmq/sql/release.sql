-- Takes the delivery back. read_ct is PGMQ's own and never lowered, so releases are counted separately.
-- Plan: Index Scan using {primary_key} on {table} m
with lock_wait as materialized (select set_config('lock_timeout', '200ms', true))
update {queue} m
set vt = {schema}.clock(),
    headers = {schema}.noted(m.headers, jsonb_build_object(
      'returned', m.read_ct,
      'released', coalesce({schema}.number({schema}.ours(m.headers)->'released'), 0) + 1))
from lock_wait, unnest($1::bigint[], $2::int[], $3::timestamptz[], $4::timestamptz[])
     as s (msg_id, read_ct, last_read_at, vt)
where m.msg_id = s.msg_id
  and {schema}.is_held(m.read_ct, m.last_read_at, m.vt, m.headers, s.read_ct, s.last_read_at, s.vt)
returning m.msg_id, false as is_keyed
