-- The message keeps its position in its key, which it blocks until it comes back. The mark `returned` also ends the
-- lease, because read_ct and last_read_at do not change.
-- Plan: Index Scan using {primary_key} on {table} m
with lock_wait as materialized (select set_config('lock_timeout', '200ms', true))
update {queue} m
set vt = {schema}.clock() + s.delay * interval '1 microsecond',
    headers = {schema}.noted(m.headers, jsonb_strip_nulls(jsonb_build_object(
      'returned', m.read_ct,
      'attempts', coalesce({schema}.number({schema}.ours(m.headers)->'attempts'), 0) + 1,
      'error', coalesce(s.error, {schema}.ours(m.headers)->>'error'))) ||
      case when $8::boolean then jsonb_build_object('failures', {schema}.failures(m.headers, jsonb_strip_nulls(
        jsonb_build_object('at', {schema}.micros({schema}.clock()), 'worker', $7::text, 'error', s.error))))
      else '{}' end)
from lock_wait, unnest($1::bigint[], $2::int[], $3::timestamptz[], $4::timestamptz[], $5::bigint[], $6::text[])
     as s (msg_id, read_ct, last_read_at, vt, delay, error)
where m.msg_id = s.msg_id
  and {schema}.is_held(m.read_ct, m.last_read_at, m.vt, m.headers, s.read_ct, s.last_read_at, s.vt)
returning m.msg_id, false as is_keyed
