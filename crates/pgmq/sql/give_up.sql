-- Like leases that run out now: the deliveries stay counted.
-- Plan: Index Scan using {primary_key} on {table} m
update {queue} m set vt = {schema}.clock()
from unnest($1::bigint[], $2::int[], $3::timestamptz[], $4::timestamptz[])
     as s (msg_id, read_ct, last_read_at, vt)
where m.msg_id = s.msg_id
  and {schema}.is_held(m.read_ct, m.last_read_at, m.vt, m.headers, s.read_ct, s.last_read_at, s.vt)
returning m.msg_id, false
