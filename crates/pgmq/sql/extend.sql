-- Sets the ends of valid leases. The new end is noted, so that it differs from one that another client has set.
-- Plan: Index Scan using {primary_key} on {table} m
with lock_wait as materialized (select set_config('lock_timeout', '200ms', true))
update {queue} m
set vt = {schema}.clock() + s.extension * interval '1 microsecond',
    headers = {schema}.noted(m.headers, jsonb_build_object(
      'lease_ends', {schema}.micros({schema}.clock() + s.extension * interval '1 microsecond')))
from lock_wait, unnest($1::bigint[], $2::int[], $3::timestamptz[], $4::timestamptz[], $5::bigint[])
     as s (msg_id, read_ct, last_read_at, vt, extension)
where m.msg_id = s.msg_id
  and {schema}.is_held(m.read_ct, m.last_read_at, m.vt, m.headers, s.read_ct, s.last_read_at, s.vt)
returning m.msg_id, false as is_keyed
