-- The holders of these dedup keys, and whether each has expired and is not leased.
-- Plan: Index Scan using dedup_pkey on dedup d
-- Plan: Index Scan using {primary_key} on {table} m
select d.dedup_key, d.message_id, m.msg_id,
       coalesce({schema}.number({schema}.ours(m.headers)->'expires_at') <= {schema}.micros({schema}.clock())
                and not {schema}.is_leased(m.vt, m.read_ct, m.headers), false) as has_expired
from {schema}.dedup d
join {queue} m on m.msg_id = d.msg_id and {schema}.ours(m.headers)->>'id' = d.message_id
where d.queue = $1 and d.dedup_key = any ($2::text[])
