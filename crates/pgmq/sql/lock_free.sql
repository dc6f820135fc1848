-- Locks the messages whose leases are valid and that no other transaction has locked.
-- Plan: Index Scan using {primary_key} on {table} m
select m.msg_id
from unnest($1::bigint[], $2::int[], $3::timestamptz[], $4::timestamptz[])
     as s (msg_id, read_ct, last_read_at, vt)
join {queue} m on m.msg_id = s.msg_id
where {schema}.is_held(m.read_ct, m.last_read_at, m.vt, m.headers, s.read_ct, s.last_read_at, s.vt)
for update of m skip locked
