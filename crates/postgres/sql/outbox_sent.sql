-- Plan: Index Scan using outbox_pkey on outbox o
delete from {schema}.outbox o
using unnest($1::bigint[], $2::bigint[]) as s (id, lease_token)
where o.id = s.id and o.lease_token = s.lease_token
